//! Changed blocks of snapshots, as backup tools read them with the client library of Kubernetes'
//! external-snapshot-metadata: of a block volume on one node and a filesystem on the other.
//!
//! What is listed is copied from a volume that is restored from the snapshot, to an empty one or to one
//! that is restored from the earlier snapshot. Then both have the same bytes. So nothing that differs is
//! left out, which a change of what is not listed shows.

mod backup;
mod listing;
mod site;
mod velero;
mod volume;

use std::path::Path;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Stock, wait_for};
use hostloop_test::deployed::NAMESPACE;
use hostloop_test::machine::{self, text};

use listing::Listing;
use site::Site;
use volume::{BYTES, KEPT, Volume, content_of};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_tool_reads_changed_blocks() {
    machine::require();
    let site = Site::up().await;
    let stock = Stock::take(&site.cluster, &[]);
    site.cluster.apply(KEPT);

    let block = Volume::make(&site, "block", "Block", 1);
    block.sh(&format!("{} && {}", write(0, 16), write(32 * 1024, 16)));
    let handles = [
        block.snapshot("block-0", "hostloop").await,
        block.snapshot("block-1", "kept").await,
    ];
    block_is_allocated(&site).await;
    verifies(&block, "one", &["-s", "block-1"], None);
    block.sh(&format!("{} && {}", write(0, 4), write(16 * 1024, 16)));
    block.snapshot("block-2", "hostloop").await;
    let changed = block_has_changed(&site, &handles[1]);
    verifies(
        &block,
        "two",
        &["-s", "block-2", "-p", "block-1"],
        Some("block-1"),
    );

    let files = Volume::make(&site, "files", "Filesystem", 2);
    files.sh("dd if=/dev/urandom of=/files/one bs=64k count=16 && sync");
    let of_files = files.snapshot("files-1", "hostloop").await;
    let allocated = site.list(&["-s", "files-1"]);
    assert_eq!(allocated.capacity, BYTES);
    assert!(
        allocated.bytes() >= MIB && allocated.bytes() < BYTES,
        "{allocated:?}"
    );
    verifies(&files, "three", &["-s", "files-1"], None);
    files.sh("dd if=/dev/urandom of=/files/two bs=64k count=4 && sync");
    files.snapshot("files-2", "hostloop").await;
    let of_second = site.list(&["-s", "files-2", "-p", "files-1"]);
    assert!(of_second.bytes() >= 256 * KIB, "{of_second:?}");
    assert!(of_second.bytes() < allocated.bytes(), "{of_second:?}");
    verifies(
        &files,
        "four",
        &["-s", "files-2", "-p", "files-1"],
        Some("files-1"),
    );

    backup::restores_the_same_bytes(&block, &files).await;
    strangers_read_nothing(&site);
    older_tls_is_refused(&site);
    bases_are_checked(&site, &handles[1], &of_files);
    deleted_bases(&site, &handles, &changed).await;
    pods_come_and_go(&site, &handles[1], &changed).await;
    velero::asks_from_its_own_namespace(&block).await;

    for snapshot in ["block-2", "files-1", "files-2"] {
        let delete = ["delete", "volumesnapshot", snapshot, "--timeout=300s"];
        site.cluster.kubectl(&delete);
    }
    block.delete();
    files.delete();
    stock.assert_nothing_left(&site.cluster).await;
    site.cluster.delete(KEPT);
    site.down().await;
}

/// The command that writes these KiB at this one of the block volume.
fn write(at: u64, kib: u64) -> String {
    format!("dd if=/dev/urandom of=/dev/block bs=1k seek={at} count={kib} conv=notrunc,fsync")
}

/// What is copied and compared is the same, until what is not listed differs.
#[track_caller]
fn verifies(volume: &Volume<'_>, name: &str, arguments: &[&str], earlier: Option<&str>) {
    let snapshot = arguments[1];
    let devices = volume.devices(name, snapshot, earlier);
    devices
        .verify(arguments)
        .unwrap_or_else(|why| panic!("{snapshot}: {why}"));
    let hole = volume.site.list(arguments).last_hole();
    devices.change_source(hole);
    fails(devices.verify(arguments), "contents do not match");
    devices.delete();
}

#[track_caller]
fn fails(answer: Result<String, String>, why: &str) {
    match answer {
        Ok(said) => panic!("no failure with {why:?}: {said}"),
        Err(said) => assert!(said.contains(why), "{why:?} is not in: {said}"),
    }
}

/// What the first two writes have allocated. The service is ready a moment after its pods.
async fn block_is_allocated(site: &Site) {
    let list = ["-s", "block-1"];
    let printed = wait_for("the service", PATIENCE, async || site.tool(&list)).await;
    let allocated = Listing::read(&printed);
    assert_eq!(allocated.capacity, BYTES);
    assert!(allocated.covers(0, 16 * KIB), "{allocated:?}");
    assert!(
        allocated.covers(32 * MIB, 32 * MIB + 16 * KIB),
        "{allocated:?}"
    );
    assert!(allocated.bytes() < 8 * MIB, "{allocated:?}");

    let rest = site.list(&["-s", "block-1", "-starting-offset", "1048576"]);
    assert!(rest.leaves_out(0, 16 * KIB), "{rest:?}");
    assert!(rest.covers(32 * MIB, 32 * MIB + 16 * KIB), "{rest:?}");
    let small = site.list(&["-s", "block-1", "-max-results", "1"]);
    assert_eq!(small.ranges, allocated.ranges);
    assert_eq!(small.messages, small.ranges.len());
}

/// What the second two writes have changed, by the name and by the handle of the base.
fn block_has_changed(site: &Site, base: &str) -> Listing {
    let changed = site.list(&["-s", "block-2", "-p", "block-1"]);
    assert!(changed.covers(0, 4 * KIB), "{changed:?}");
    assert!(changed.covers(16 * MIB, 16 * MIB + 16 * KIB), "{changed:?}");
    assert!(
        changed.leaves_out(32 * MIB, 32 * MIB + 16 * KIB),
        "{changed:?}"
    );
    assert_eq!(site.list(&["-s", "block-2", "-P", base]), changed);
    changed
}

/// A user who sees another namespace alone, tokens that are not for the service, and a caller that
/// trusts others.
fn strangers_read_nothing(site: &Site) {
    let cluster = &site.cluster;
    cluster.kubectl(&["create", "namespace", "strangers"]);
    cluster.kubectl(&["create", "serviceaccount", "-n", "strangers", "stranger"]);
    cluster.kubectl(&[
        "create",
        "rolebinding",
        "-n",
        "strangers",
        "stranger",
        "--clusterrole=backup-changed-blocks",
        "--serviceaccount=strangers:stranger",
    ]);
    let as_stranger = [
        "-s",
        "block-1",
        "-service-account-namespace",
        "strangers",
        "-service-account",
        "stranger",
    ];
    fails(
        site.tool_of_administrator(&as_stranger),
        "code = PermissionDenied",
    );

    let token = |audience: &str| {
        let audience = format!("--audience={audience}");
        cluster.kubectl(&["create", "token", "-n", "default", "backup", &audience])
    };
    let (ours, for_others) = (token("hostloop.csi.dev"), token("another"));
    let with_token = |token: &str, snapshot: &str, more: &[&str]| {
        let words = ["-token", token.trim(), "-s", snapshot];
        site.tool(&[&words[..], more].concat())
    };
    with_token(&ours, "block-1", &[]).unwrap_or_else(|why| panic!("{why}"));
    fails(
        with_token(&for_others, "block-1", &[]),
        "code = Unauthenticated",
    );
    fails(
        with_token("guess", "block-1", &[]),
        "code = Unauthenticated",
    );
    fails(with_token(&ours, "none", &[]), "code = NotFound");
    let other = other_authority(site.dir());
    let refused = with_token(&ours, "block-1", &["-authority", &other]);
    fails(refused, "certificate signed by unknown authority");
    cluster.kubectl(&["delete", "namespace", "strangers", "--timeout=300s"]);
}

fn older_tls_is_refused(site: &Site) {
    let address = site.address().to_string();
    let speak = |version| {
        let words = ["s_client", "-connect", &*address, version];
        machine::try_run("openssl", &words)
    };
    let spoken = speak("-tls1_3").unwrap_or_else(|why| panic!("{why}"));
    assert!(spoken.contains("TLSv1.3"), "{spoken}");
    fails(speak("-tls1_2"), "alert protocol version");
}

/// A file with the certificate of an authority that signs nothing here.
fn other_authority(dir: &Path) -> String {
    let (key, certificate) = (dir.join("other.key"), dir.join("other.crt"));
    let make = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=other",
        "-keyout",
        text(&key),
        "-out",
        text(&certificate),
    ];
    machine::run("openssl", &make);
    text(&certificate).to_owned()
}

/// A guessed base, and one of another volume.
fn bases_are_checked(site: &Site, base: &str, of_files: &str) {
    let (pool, _) = base.rsplit_once('-').expect("a handle has parts");
    let guess = format!("{pool}-0");
    for (base, why) in [
        (guess.as_str(), "code = PermissionDenied"),
        (of_files, "code = InvalidArgument"),
    ] {
        fails(site.tool(&["-s", "block-2", "-P", base]), why);
    }
}

/// Both snapshots go with their objects. The class of the second one keeps its image as a base.
async fn deleted_bases(site: &Site, handles: &[String; 2], changed: &Listing) {
    let cluster = &site.cluster;
    let contents = ["block-0", "block-1"].map(|snapshot| content_of(site, snapshot));
    for snapshot in ["block-0", "block-1"] {
        cluster.kubectl(&["delete", "volumesnapshot", snapshot, "--timeout=300s"]);
    }
    // The driver has deleted a snapshot once its content is gone.
    for content in contents {
        let name = format!("volumesnapshotcontent/{content}");
        cluster.kubectl(&["wait", "--for=delete", &name, "--timeout=300s"]);
    }
    wait_for(
        "the end of the first snapshot",
        PATIENCE,
        async || match site.tool(&["-s", "block-2", "-P", &handles[0]]) {
            Err(why) if why.contains("code = FailedPrecondition") => Ok(()),
            found => Err(format!("{found:?}")),
        },
    )
    .await;
    assert_eq!(&site.list(&["-s", "block-2", "-P", &handles[1]]), changed);
}

/// A new leader knows the deleted base, and finds nodes after their processes made new keys.
async fn pods_come_and_go(site: &Site, base: &str, changed: &Listing) {
    let published = || {
        let authority = "jsonpath={.items[0].spec.caCert}";
        site.cluster
            .kubectl(&["get", "snapshotmetadataservices", "-o", authority])
    };
    let before = published();
    for workload in ["deployment/hostloop-controller", "daemonset/hostloop"] {
        let restart = ["rollout", "restart", "-n", NAMESPACE, workload];
        site.cluster.kubectl(&restart);
        let status = [
            "rollout",
            "status",
            "-n",
            NAMESPACE,
            workload,
            "--timeout=300s",
        ];
        site.cluster.kubectl(&status);
        site.follow_controller().await;
        let printed = wait_for("the service", PATIENCE, async || {
            site.tool(&["-s", "block-2", "-P", base])
        })
        .await;
        assert_eq!(&Listing::read(&printed), changed, "{workload}");
        let of_files = ["-s", "files-2", "-p", "files-1"];
        wait_for("the other node", PATIENCE, async || site.tool(&of_files)).await;
    }
    assert_eq!(published(), before, "the authority stays");
}

//! The Node service's table: above all, paths.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::attacks::{INLINE_ATTRIBUTES, INLINE_SIZES};
use hostloop_test::client::{at_least, map, mounted};
use hostloop_test::pools::MIB;

use hostloop_test::requests::{self, text, unpublish, unstage};

use super::bench::{Bench, Known, SECRET, secrets};
use super::codes::*;
use super::create::range;
use super::strings::{missing, not_ids};

type Row = (&'static str, String);

/// Paths at which nothing may be mounted or taken down.
fn wrong_places(known: &Known) -> Vec<Row> {
    vec![
        ("a symlink", known.path("link")),
        ("a file", known.path("file")),
        ("a foreign mount", text(&known.foreign_mount)),
    ]
}

/// Paths at which nothing can be mounted.
fn unusable_places(known: &Known) -> Vec<Row> {
    let mut places = wrong_places(known);
    places.extend([
        ("a dangling symlink", known.path("dangling")),
        ("a symlink to itself", known.path("loop")),
        ("a path through a loop", known.path("loop/x")),
        ("a path through a file", known.path("file/x")),
        ("a missing directory", known.path("none/x")),
        ("the staging path in use", known.used_staging.clone()),
    ]);
    places
}

fn stage_request(id: &str, path: &str) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_capability: Some(mounted("ext4", Mode::SingleNodeMultiWriter)),
        secrets: secrets(),
        ..requests::stage(id, path)
    }
}

/// Publishes the volume that is staged, at this path.
fn publish_request(known: &Known, path: &str) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_capability: Some(mounted("ext4", Mode::SingleNodeMultiWriter)),
        secrets: secrets(),
        ..requests::publish(&known.used, &known.used_staging, path)
    }
}

fn stats_request(id: &str, path: &str) -> csi::NodeGetVolumeStatsRequest {
    csi::NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        ..Default::default()
    }
}

fn expand_request(id: &str, path: &str) -> csi::NodeExpandVolumeRequest {
    csi::NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        secrets: secrets(),
        ..Default::default()
    }
}

/// Paths that are wrong by themselves, in every call that takes one.
pub(crate) async fn paths(bench: &mut Bench) {
    let known = bench.known.clone();
    let (attached, used) = (&known.attached, &known.used);
    let stage = |path: &str| stage_request(attached, path);
    let publish = |path: &str| publish_request(&known, path);
    bench.paths(stage, INVALID).await;
    bench.paths(publish, INVALID).await;
    bench.paths(|path| unpublish(used, path), INVALID).await;
    bench.paths(|path| unstage(used, path), INVALID).await;
    bench.paths(|path| stats_request(used, path), MISSING).await;
    bench
        .paths(|path| expand_request(used, path), MISSING)
        .await;
    let endless = format!("/{}", "a/".repeat(4000));
    let what = "a path longer than the kernel's";
    bench.refuse(what, stage(&endless), WRONG_PLACE).await;
    bench.refuse(what, publish(&endless), WRONG_PLACE).await;
}

pub(crate) async fn stage(bench: &mut Bench) {
    let known = bench.known.clone();
    let (attached, used) = (&known.attached, &known.used);
    let good = known.path("full");
    let as_volume = |id: &str| stage_request(id, &good);
    bench.ids(attached, as_volume, MISSING).await;
    let capability = |volume_capability| csi::NodeStageVolumeRequest {
        volume_capability,
        ..stage_request(attached, &good)
    };
    bench.capabilities(capability).await;
    for (what, path) in unusable_places(&known) {
        bench
            .refuse(what, stage_request(attached, &path), WRONG_PLACE)
            .await;
    }
    let xfs = csi::NodeStageVolumeRequest {
        volume_capability: Some(mounted("xfs", Mode::SingleNodeMultiWriter)),
        ..stage_request(used, &known.used_staging)
    };
    let rows = [
        ("a second staging path", as_volume(used), PRECONDITION),
        ("another capability", xfs, EXISTS),
    ];
    bench.refuse_all(rows).await;
}

pub(crate) async fn publish(bench: &mut Bench) {
    let known = bench.known.clone();
    let new = known.path("target");
    let as_volume = |id: &str| csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        ..publish_request(&known, &new)
    };
    bench.ids(&known.used, as_volume, MISSING).await;
    let capability = |volume_capability| csi::NodePublishVolumeRequest {
        volume_capability,
        ..publish_request(&known, &new)
    };
    bench.capabilities(capability).await;
    let mut places = unusable_places(&known);
    places.push(("another volume's target", known.block_target.clone()));
    for (what, path) in places {
        bench
            .refuse(what, publish_request(&known, &path), WRONG_PLACE)
            .await;
    }
    let staged_at = |id: &str, path: String| csi::NodePublishVolumeRequest {
        staging_target_path: path,
        ..as_volume(id)
    };
    let (full, used) = (known.path("full"), &known.used);
    let unstaged = staged_at(&known.attached, full.clone());
    let no_path = staged_at(used, String::new());
    let read_only = csi::NodePublishVolumeRequest {
        readonly: true,
        ..publish_request(&known, &known.used_target)
    };
    let rows = [
        ("a volume that is not staged", unstaged, PRECONDITION),
        ("another staging path", staged_at(used, full), PRECONDITION),
        ("no staging path", no_path, PRECONDITION),
        ("another readonly", read_only, EXISTS),
    ];
    bench.refuse_all(rows).await;
}

/// Unpublish and unstage: only the volume's own mounts are taken down.
pub(crate) async fn take_down(bench: &mut Bench) {
    let known = bench.known.clone();
    let (used, idle) = (&known.used, &known.idle);
    let (target, staging) = (&known.used_target, &known.used_staging);
    let mut places = wrong_places(&known);
    places.extend([
        ("a directory with files", known.path("full")),
        ("the canary", text(&known.canary)),
        ("another volume's target", known.block_target.clone()),
        ("another volume's staging", known.block_staging.clone()),
    ]);
    for (what, path) in &places {
        bench.refuse(what, unpublish(used, path), UNTOUCHED).await;
        bench.refuse(what, unpublish(idle, path), UNTOUCHED).await;
        bench.refuse(what, unstage(idle, path), UNTOUCHED).await;
    }
    let nothing = &known.path("nothing");
    let unknown = [MISSING, UNTOUCHED].concat();
    let at_target = |id: &str| unpublish(id, target);
    bench.ids(used, at_target, &unknown).await;
    let at_staging = |id: &str| unstage(id, staging);
    bench.ids(used, at_staging, &unknown).await;
    let at_nothing = |id: &str| unpublish(id, nothing);
    bench.not_ids(used, at_nothing, &unknown).await;
    let never = &missing(used);
    let its_staging = unpublish(used, staging);
    let rows = [
        ("a missing volume", at_nothing(never), OK),
        ("a missing volume", at_target(never), UNTOUCHED),
        ("its staging path", its_staging, WRONG_PLACE),
    ];
    bench.refuse_all(rows).await;
    let published = [PRECONDITION, ABORTED].concat();
    let rows = [
        ("a missing volume", unstage(never, nothing), OK),
        ("a published volume", at_staging(used), &published[..]),
    ];
    bench.refuse_all(rows).await;
}

pub(crate) async fn ask(bench: &mut Bench) {
    let known = bench.known.clone();
    let (used, path) = (&known.used, &known.used_target);
    bench.ids(used, |id| stats_request(id, path), MISSING).await;
    let health = |id: &str| csi::NodeGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        volume_publish_path: path.to_owned(),
        ..Default::default()
    };
    bench.ids(used, health, MISSING).await;
    let expand = |id: &str| expand_request(id, path);
    bench.ids(used, expand, MISSING).await;
    let gone = [NOT_FOUND, PRECONDITION].concat();
    for (what, place) in [
        ("the canary", text(&known.canary)),
        ("a foreign mount", text(&known.foreign_mount)),
        ("another volume's", known.block_target.clone()),
    ] {
        bench
            .refuse(what, stats_request(used, &place), NOT_FOUND)
            .await;
        let larger = csi::NodeExpandVolumeRequest {
            capacity_range: at_least(64 * MIB),
            ..expand_request(used, &place)
        };
        bench.refuse(what, larger, &gone).await;
    }
    let to = |required, limit| csi::NodeExpandVolumeRequest {
        capacity_range: range(required, limit),
        ..expand(used)
    };
    let too_large = [OUT_OF_RANGE, PRECONDITION].concat();
    let rows = [
        ("a negative size", to(-1, 0), INVALID),
        ("a negative limit", to(0, -1), INVALID),
        ("a limit below", to(9, 8), INVALID),
        ("more than the volume has", to(1 << 50, 0), &too_large[..]),
    ];
    bench.refuse_all(rows).await;
}

/// Inline volumes: kubelet names them, and a pod's author gives the attributes.
pub(crate) async fn inline(bench: &mut Bench) {
    let target = bench.known.path("inline");
    let inline = |id: &str, fs: &str, attributes: &[(&str, &str)]| {
        let inline = [("csi.storage.k8s.io/ephemeral", "true")];
        csi::NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: target.clone(),
            volume_capability: Some(mounted(fs, Mode::SingleNodeWriter)),
            volume_context: map(&[&inline[..], attributes].concat()),
            secrets: secrets(),
            ..Default::default()
        }
    };
    let id = format!("csi-{}", "0123456789abcdef".repeat(4));
    let pairs = [
        ("size", "-1"),
        ("size", "-0.5"),
        ("size", "500m"),
        ("size", "many"),
        ("size", ""),
        ("size", "1e400"),
        ("size", "99999999999999999999Gi"),
        ("mkfsOptions", "\0"),
        ("unknown", "x"),
    ];
    let with = |key: &str, value: &str| inline(&id, "ext4", &[("size", "32Mi"), (key, value)]);
    bench.parameters(&pairs, with).await;
    for fs in ["ext4", "xfs", "btrfs"] {
        let with = |key: &str, value: &str| inline(&id, fs, &[("size", "320Mi"), (key, value)]);
        bench.parameters(INLINE_ATTRIBUTES, with).await;
    }
    for size in INLINE_SIZES {
        bench
            .refuse(size, inline(&id, "ext4", &[("size", size)]), OUT_OF_RANGE)
            .await;
    }
    let mut not_ids = not_ids(&id);
    not_ids.retain(|(_, id)| id.starts_with("csi-"));
    for (what, id) in not_ids {
        bench
            .refuse(what, inline(&id, "ext4", &[("size", "32Mi")]), MISSING)
            .await;
    }
}

/// Long paths, a symlink on the way, and contexts and secrets of any size are taken.
pub(crate) async fn odd_paths(bench: &mut Bench) {
    let known = bench.known.clone();
    let idle = &known.idle;
    let long = known.paths.join("d".repeat(200)).join("e".repeat(200));
    std::fs::create_dir_all(&long).expect("a long path can be made");
    let staging = &text(long.join("stage"));
    std::fs::create_dir(staging).expect("a staging path can be made");
    let through = known.paths.join("through");
    std::os::unix::fs::symlink(&long, &through).expect("a symlink can be made");
    let target = &text(through.join("target with spaces\tand a tab\nand a line"));
    let large = "c".repeat(100_000);
    let mut secrets = secrets();
    secrets.insert("large".to_owned(), SECRET.repeat(20_000));
    let context = map(&[
        ("large", &large),
        ("csi.storage.k8s.io/serviceAccount.tokens", SECRET),
        ("csi.storage.k8s.io/pod.name", "pod"),
    ]);
    let stage = csi::NodeStageVolumeRequest {
        secrets: secrets.clone(),
        volume_context: context.clone(),
        ..stage_request(idle, staging)
    };
    bench.take("a long path and a large context", stage).await;
    let publish = |context| csi::NodePublishVolumeRequest {
        volume_id: idle.clone(),
        staging_target_path: staging.clone(),
        secrets: secrets.clone(),
        volume_context: context,
        ..publish_request(&known, target)
    };
    bench
        .take("a path through a symlink", publish(context))
        .await;
    // Tokens are new at every republish: the call is the same.
    let fresh = map(&[("csi.storage.k8s.io/serviceAccount.tokens", "fresh")]);
    bench.take("other tokens", publish(fresh)).await;
    for what in ["its target", "its target again"] {
        bench.take(what, unpublish(idle, target)).await;
    }
    for what in ["its staging path", "its staging path again"] {
        bench.take(what, unstage(idle, staging)).await;
    }
}

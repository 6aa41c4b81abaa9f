//! The Node service's table: above all, paths.

use std::path::Path;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::attacks::{INLINE_ATTRIBUTES, INLINE_SIZES};
use hostloop_test::client::{at_least, map, mounted};
use hostloop_test::pools::MIB;
use tonic::Code;

use super::bench::{Bench, SECRET};
use super::create::{INVALID, MISSING, not_capabilities};
use super::strings::{missing, not_ids, not_paths};

/// What is at the path is not what it must be.
const WRONG_PLACE: &[Code] = &[
    Code::Internal,
    Code::InvalidArgument,
    Code::FailedPrecondition,
    Code::AlreadyExists,
];

fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().display().to_string()
}

fn stage_request(bench: &Bench, id: &str, path: &str) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: path.to_owned(),
        volume_capability: Some(mounted("ext4", Mode::SingleNodeMultiWriter)),
        secrets: bench.secrets(),
        ..Default::default()
    }
}

/// Publishes the volume that is staged, at this path.
fn publish_request(bench: &Bench, path: &str) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: bench.known.used.clone(),
        staging_target_path: text(bench.world.staging("used")),
        target_path: path.to_owned(),
        volume_capability: Some(mounted("ext4", Mode::SingleNodeMultiWriter)),
        secrets: bench.secrets(),
        ..Default::default()
    }
}

fn unpublish_request(id: &str, path: &str) -> csi::NodeUnpublishVolumeRequest {
    csi::NodeUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: path.to_owned(),
    }
}

fn unstage_request(id: &str, path: &str) -> csi::NodeUnstageVolumeRequest {
    csi::NodeUnstageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: path.to_owned(),
    }
}

/// Paths that are wrong by themselves, in every call that takes one.
pub(crate) async fn paths(bench: &mut Bench) {
    let (attached, used) = (bench.known.attached.clone(), bench.known.used.clone());
    for (what, path) in not_paths() {
        let request = stage_request(bench, &attached, &path);
        bench.refuse(what, request, INVALID).await;
        let request = publish_request(bench, &path);
        bench.refuse(what, request, INVALID).await;
        bench
            .refuse(what, unpublish_request(&used, &path), INVALID)
            .await;
        bench
            .refuse(what, unstage_request(&used, &path), INVALID)
            .await;
        let stats = csi::NodeGetVolumeStatsRequest {
            volume_id: used.clone(),
            volume_path: path.clone(),
            ..Default::default()
        };
        bench.refuse(what, stats, MISSING).await;
        let expand = csi::NodeExpandVolumeRequest {
            volume_id: used.clone(),
            volume_path: path.clone(),
            ..Default::default()
        };
        bench.refuse(what, expand, MISSING).await;
    }
    let endless = format!("/{}", "a/".repeat(4000));
    let refused = [INVALID, WRONG_PLACE].concat();
    let request = stage_request(bench, &attached, &endless);
    bench
        .refuse("a path longer than the kernel's", request, &refused)
        .await;
    let request = publish_request(bench, &endless);
    bench
        .refuse("a path longer than the kernel's", request, &refused)
        .await;
}

pub(crate) async fn stage(bench: &mut Bench) {
    let attached = bench.known.attached.clone();
    let good = text(bench.known.paths.join("full"));
    let request = stage_request(bench, "", &good);
    bench.refuse("no ID", request, INVALID).await;
    for (what, id) in not_ids(&attached) {
        let request = stage_request(bench, &id, &good);
        bench.refuse(what, request, MISSING).await;
    }
    for (what, capability) in not_capabilities() {
        let request = csi::NodeStageVolumeRequest {
            volume_capability: Some(capability),
            ..stage_request(bench, &attached, &good)
        };
        bench.refuse(what, request, INVALID).await;
    }
    let none = csi::NodeStageVolumeRequest {
        volume_capability: None,
        ..stage_request(bench, &attached, &good)
    };
    bench.refuse("no capability", none, INVALID).await;
    let known = &bench.known;
    let places = [
        ("a symlink", text(known.paths.join("link"))),
        ("a dangling symlink", text(known.paths.join("dangling"))),
        ("a symlink to itself", text(known.paths.join("loop"))),
        ("a path through a loop", text(known.paths.join("loop/x"))),
        ("a file", text(known.paths.join("file"))),
        ("a path through a file", text(known.paths.join("file/x"))),
        (
            "a path whose directory is missing",
            text(known.paths.join("none/x")),
        ),
        ("somebody else's mount", text(&known.foreign_mount)),
        (
            "another volume's staging path",
            text(bench.world.staging("used")),
        ),
    ];
    for (what, path) in places {
        let request = stage_request(bench, &attached, &path);
        bench.refuse(what, request, WRONG_PLACE).await;
    }
    let used = bench.known.used.clone();
    let second = text(bench.known.paths.join("full"));
    let request = stage_request(bench, &used, &second);
    bench
        .refuse(
            "a second staging path",
            request,
            &[Code::FailedPrecondition],
        )
        .await;
    let request = csi::NodeStageVolumeRequest {
        volume_capability: Some(mounted("xfs", Mode::SingleNodeMultiWriter)),
        ..stage_request(bench, &used, &text(bench.world.staging("used")))
    };
    bench
        .refuse("another capability", request, &[Code::AlreadyExists])
        .await;
}

pub(crate) async fn publish(bench: &mut Bench) {
    let new = text(bench.known.paths.join("target"));
    let as_volume = |bench: &Bench, id: &str| csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        ..publish_request(bench, &new)
    };
    let request = as_volume(bench, "");
    bench.refuse("no ID", request, INVALID).await;
    let used = bench.known.used.clone();
    for (what, id) in not_ids(&used) {
        let request = as_volume(bench, &id);
        bench.refuse(what, request, MISSING).await;
    }
    for (what, capability) in not_capabilities() {
        let request = csi::NodePublishVolumeRequest {
            volume_capability: Some(capability),
            ..publish_request(bench, &new)
        };
        bench.refuse(what, request, INVALID).await;
    }
    let none = csi::NodePublishVolumeRequest {
        volume_capability: None,
        ..publish_request(bench, &new)
    };
    bench.refuse("no capability", none, INVALID).await;
    let attached = bench.known.attached.clone();
    let unstaged = csi::NodePublishVolumeRequest {
        staging_target_path: text(bench.known.paths.join("full")),
        ..as_volume(bench, &attached)
    };
    bench
        .refuse(
            "a volume that is not staged",
            unstaged,
            &[Code::FailedPrecondition],
        )
        .await;
    let elsewhere = csi::NodePublishVolumeRequest {
        staging_target_path: text(bench.known.paths.join("full")),
        ..publish_request(bench, &new)
    };
    bench
        .refuse(
            "another staging path",
            elsewhere,
            &[Code::FailedPrecondition],
        )
        .await;
    let no_staging = csi::NodePublishVolumeRequest {
        staging_target_path: String::new(),
        ..publish_request(bench, &new)
    };
    bench
        .refuse("no staging path", no_staging, &[Code::FailedPrecondition])
        .await;
    let known = &bench.known;
    let places = [
        ("a symlink", text(known.paths.join("link"))),
        ("a dangling symlink", text(known.paths.join("dangling"))),
        ("a symlink to itself", text(known.paths.join("loop"))),
        ("a file", text(known.paths.join("file"))),
        (
            "a path whose directory is missing",
            text(known.paths.join("none/x")),
        ),
        ("somebody else's mount", text(&known.foreign_mount)),
        (
            "another volume's target",
            text(bench.world.target("block", "pod")),
        ),
        ("its own staging path", text(bench.world.staging("used"))),
    ];
    for (what, path) in places {
        let request = publish_request(bench, &path);
        bench.refuse(what, request, WRONG_PLACE).await;
    }
    let read_only = csi::NodePublishVolumeRequest {
        readonly: true,
        ..publish_request(bench, &text(bench.world.target("used", "pod")))
    };
    bench
        .refuse("another readonly", read_only, &[Code::AlreadyExists])
        .await;
}

/// Unpublish and unstage: whatever is not the volume's own stays.
pub(crate) async fn take_down(bench: &mut Bench) {
    let (used, idle) = (bench.known.used.clone(), bench.known.idle.clone());
    let known = &bench.known;
    let nothing = text(known.paths.join("nothing"));
    let places = [
        ("a directory with files", text(known.paths.join("full"))),
        ("the canary", text(&known.canary)),
        ("a symlink", text(known.paths.join("link"))),
        ("a file", text(known.paths.join("file"))),
        ("somebody else's mount", text(&known.foreign_mount)),
        (
            "another volume's target",
            text(bench.world.target("block", "pod")),
        ),
        (
            "another volume's staging path",
            text(bench.world.staging("block")),
        ),
    ];
    let kept = [&[Code::Ok][..], WRONG_PLACE].concat();
    for (what, path) in &places {
        bench
            .refuse(what, unpublish_request(&used, path), &kept)
            .await;
        bench
            .refuse(what, unpublish_request(&idle, path), &kept)
            .await;
        bench
            .refuse(what, unstage_request(&idle, path), &kept)
            .await;
    }
    let (target, staging) = (
        text(bench.world.target("used", "pod")),
        text(bench.world.staging("used")),
    );
    bench
        .refuse("no ID", unpublish_request("", &target), INVALID)
        .await;
    bench
        .refuse("no ID", unstage_request("", &staging), INVALID)
        .await;
    for (what, id) in not_ids(&used) {
        let unknown = [&[Code::Ok][..], MISSING, WRONG_PLACE].concat();
        bench
            .refuse(what, unpublish_request(&id, &target), &unknown)
            .await;
        bench
            .refuse(what, unstage_request(&id, &staging), &unknown)
            .await;
        bench
            .refuse(what, unpublish_request(&id, &nothing), &unknown)
            .await;
    }
    let never = missing(&used);
    bench
        .refuse(
            "a missing volume",
            unpublish_request(&never, &nothing),
            &[Code::Ok],
        )
        .await;
    bench
        .refuse(
            "a missing volume",
            unstage_request(&never, &nothing),
            &[Code::Ok],
        )
        .await;
    bench
        .refuse(
            "a missing volume",
            unpublish_request(&never, &target),
            &kept,
        )
        .await;
    bench
        .refuse(
            "while it is published",
            unstage_request(&used, &staging),
            &[Code::FailedPrecondition, Code::Aborted],
        )
        .await;
    bench
        .refuse(
            "its staging path",
            unpublish_request(&used, &staging),
            WRONG_PLACE,
        )
        .await;
}

pub(crate) async fn ask(bench: &mut Bench) {
    let used = bench.known.used.clone();
    let path = text(bench.world.target("used", "pod"));
    let stats = |id: &str, path: &str| csi::NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        ..Default::default()
    };
    let health = |id: &str, path: &str| csi::NodeGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        volume_publish_path: path.to_owned(),
        ..Default::default()
    };
    let secrets = bench.secrets();
    let expand = |id: &str, path: &str, capacity_range| csi::NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: path.to_owned(),
        capacity_range,
        secrets: secrets.clone(),
        ..Default::default()
    };
    bench.refuse("no ID", stats("", &path), INVALID).await;
    bench.refuse("no ID", health("", &path), INVALID).await;
    bench
        .refuse("no ID", expand("", &path, None), INVALID)
        .await;
    for (what, id) in not_ids(&used) {
        bench.refuse(what, stats(&id, &path), MISSING).await;
        bench.refuse(what, health(&id, &path), MISSING).await;
        bench.refuse(what, expand(&id, &path, None), MISSING).await;
    }
    let canary = text(&bench.known.canary);
    let foreign = text(&bench.known.foreign_mount);
    let other = text(bench.world.target("block", "pod"));
    for (what, place) in [
        ("the canary", canary),
        ("somebody else's mount", foreign),
        ("another volume's", other),
    ] {
        bench
            .refuse(what, stats(&used, &place), &[Code::NotFound])
            .await;
        bench
            .refuse(
                what,
                expand(&used, &place, at_least(64 * MIB)),
                &[Code::NotFound, Code::FailedPrecondition],
            )
            .await;
    }
    for (what, required_bytes, limit_bytes) in [
        ("a negative size", -1, 0),
        ("a negative limit", 0, -1),
        ("a limit below", 9, 8),
    ] {
        let range = Some(csi::CapacityRange {
            required_bytes,
            limit_bytes,
        });
        bench
            .refuse(what, expand(&used, &path, range), INVALID)
            .await;
    }
    let too_large = expand(&used, &path, at_least(1 << 50));
    bench
        .refuse(
            "more than it was expanded to",
            too_large,
            &[Code::OutOfRange, Code::FailedPrecondition],
        )
        .await;
}

/// Inline volumes: kubelet names them, and a pod's author gives the attributes.
pub(crate) async fn inline(bench: &mut Bench) {
    let target = text(bench.known.paths.join("inline"));
    let inline = |bench: &Bench, id: &str, more: &[(&str, &str)]| {
        let attributes = [&[("csi.storage.k8s.io/ephemeral", "true")][..], more].concat();
        csi::NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: target.clone(),
            volume_capability: Some(mounted("ext4", Mode::SingleNodeWriter)),
            volume_context: map(&attributes),
            secrets: bench.secrets(),
            ..Default::default()
        }
    };
    let id = format!("csi-{}", "0123456789abcdef".repeat(4));
    for (key, value) in [
        ("size", "-1"),
        ("size", "many"),
        ("size", ""),
        ("size", "1e400"),
        ("size", "99999999999999999999Gi"),
        ("mkfsOptions", "\0"),
        ("unknown", "x"),
    ] {
        let request = inline(bench, &id, &[("size", "32Mi"), (key, value)]);
        bench
            .refuse(&format!("{key}={value:?}"), request, INVALID)
            .await;
    }
    for (key, value) in INLINE_ATTRIBUTES {
        for fs in ["ext4", "xfs", "btrfs"] {
            let mut request = inline(bench, &id, &[("size", "320Mi"), (key, value)]);
            request.volume_capability = Some(mounted(fs, Mode::SingleNodeWriter));
            bench
                .refuse(&format!("{key}={value:?} on {fs}"), request, INVALID)
                .await;
        }
    }
    for size in INLINE_SIZES {
        let request = inline(bench, &id, &[("size", size)]);
        bench.refuse(size, request, &[Code::OutOfRange]).await;
    }
    for (what, id) in not_ids(&id)
        .into_iter()
        .filter(|(_, id)| id.starts_with("csi-"))
    {
        let request = inline(bench, &id, &[("size", "32Mi")]);
        bench.refuse(what, request, MISSING).await;
    }
}

/// Long paths, a symlink on the way, and contexts and secrets of any size are taken.
pub(crate) async fn odd_paths(bench: &mut Bench) {
    let idle = bench.known.idle.clone();
    let long = bench
        .known
        .paths
        .join("d".repeat(200))
        .join("e".repeat(200));
    std::fs::create_dir_all(&long).expect("a long path can be made");
    let staging = text(long.join("stage"));
    std::fs::create_dir(&staging).expect("a staging path can be made");
    let through = bench.known.paths.join("through");
    std::os::unix::fs::symlink(&long, &through).expect("a symlink can be made");
    let target = text(through.join("target with spaces\tand a tab\nand a line"));
    let large = "c".repeat(100_000);
    let mut secrets = bench.secrets();
    secrets.insert("large".to_owned(), SECRET.repeat(20_000));
    let context = map(&[
        ("large", &large),
        ("csi.storage.k8s.io/serviceAccount.tokens", SECRET),
        ("csi.storage.k8s.io/pod.name", "pod"),
    ]);
    let capability = Some(mounted("ext4", Mode::SingleNodeMultiWriter));
    let stage = csi::NodeStageVolumeRequest {
        volume_id: idle.clone(),
        staging_target_path: staging.clone(),
        volume_capability: capability.clone(),
        secrets: secrets.clone(),
        volume_context: context.clone(),
        ..Default::default()
    };
    bench.take("a long path and a large context", stage).await;
    let publish = |context| csi::NodePublishVolumeRequest {
        volume_id: idle.clone(),
        staging_target_path: staging.clone(),
        target_path: target.clone(),
        volume_capability: capability.clone(),
        secrets: secrets.clone(),
        volume_context: context,
        ..Default::default()
    };
    bench
        .take("a path through a symlink", publish(context))
        .await;
    // Tokens are new at every republish: the call is the same.
    let fresh = map(&[("csi.storage.k8s.io/serviceAccount.tokens", "fresh")]);
    bench.take("other tokens", publish(fresh)).await;
    bench
        .take("it again", unpublish_request(&idle, &target))
        .await;
    bench
        .take("it again", unpublish_request(&idle, &target))
        .await;
    bench
        .take("it again", unstage_request(&idle, &staging))
        .await;
    bench
        .take("it again", unstage_request(&idle, &staging))
        .await;
}

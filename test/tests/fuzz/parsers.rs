//! Text from outside: IDs, page tokens, quantities, mount tables, paths and names.

use std::path::{Component, Path};

use hostloop_driver::csi::validate;
use hostloop_driver::kernel::{FsType, MountTable, check_mount_options};
use hostloop_driver::storage::{GroupId, PoolId, SnapshotId, VolumeHandle, VolumeId};
use hostloop_proto::csi;
use tonic::{Code, Status};

use crate::entropy::Entropy;
use crate::target;
use crate::world::World;

target!(
    /// An ID has one spelling, is short, and is a single plain path component.
    ids,
    |bytes: &[u8]| {
        let real = [
            VolumeId::generate(PoolId::generate()).to_string(),
            SnapshotId::generate(PoolId::generate()).to_string(),
            GroupId::generate(PoolId::generate()).to_string(),
            format!("csi-{}", "0123456789abcdef".repeat(4)),
        ];
        let text = text_like(bytes, &real);
        let parsed = [
            text.parse::<PoolId>().map(|id| id.to_string()).ok(),
            text.parse::<VolumeId>().map(|id| id.to_string()).ok(),
            text.parse::<SnapshotId>().map(|id| id.to_string()).ok(),
            text.parse::<GroupId>().map(|id| id.to_string()).ok(),
            text.parse::<VolumeHandle>().map(|id| id.to_string()).ok(),
        ];
        for id in parsed.into_iter().flatten() {
            assert_eq!(id, text, "an ID has one spelling");
            assert!(id.len() <= 128);
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            assert!(id.bytes().all(plain), "{id:?} is not plain");
        }
    }
);

target!(
    /// A page token is accepted or ABORTED; there is no other error.
    page_tokens,
    {
        let world = World::new();
        let volumes = world.create_some();
        move |bytes: &[u8]| {
            let starting_token = text_like(bytes, &volumes);
            let max_entries = bytes.first().map_or(0, |b| i32::from(*b) - 16);
            let volumes = world.controller.list_volumes(csi::ListVolumesRequest {
                max_entries,
                starting_token: starting_token.clone(),
            });
            let snapshots = world.controller.list_snapshots(csi::ListSnapshotsRequest {
                max_entries,
                starting_token,
                ..Default::default()
            });
            for status in [volumes.err(), snapshots.err()].into_iter().flatten() {
                let status = Status::from(status);
                let expected = match max_entries {
                    ..0 => Code::InvalidArgument,
                    0.. => Code::Aborted,
                };
                assert_eq!(status.code(), expected, "{status}");
            }
        }
    }
);

target!(
    /// A quantity is parsed like Kubernetes does, or refused.
    quantities,
    |bytes: &[u8]| {
        let like = ["20Gi", "1.5G", "-1e9", "+.5m", "9223372036854775807", "1E"].map(String::from);
        let text = text_like(bytes, &like);
        if let Some(bytes) = hostloop_controllers::api::quantity::bytes(&text) {
            let again = hostloop_controllers::api::quantity::bytes(&bytes.to_string());
            assert_eq!(again, Some(bytes), "{text:?}");
        }
    }
);

target!(
    /// The whole mount table is parsed, and each entry can be looked up.
    mountinfo,
    |bytes: &[u8]| {
        const LINES: &str = "36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw\n\
             37 36 7:3 /loop3 /a\\040b\\134 ro shared:2 propagate_from:1 - btrfs /dev/loop3 rw,subvol=/\n";
        let table = MountTable::parse(&Entropy::new(bytes).mutate(LINES.as_bytes()));
        let _ = MountTable::parse(bytes);
        for entry in table.iter().flat_map(|table| table.entries.iter()) {
            let _ = entry.loop_minor();
        }
    }
);

target!(
    /// An accepted path is absolute, has a name and no parent components.
    paths_and_names,
    |bytes: &[u8]| {
        let like = ["/var/lib/kubelet/pods/x/volumes/y/mount", "pvc-1"].map(String::from);
        let text = text_like(bytes, &like);
        if let Ok(path) = validate::path("target_path", &text) {
            assert!(path.is_absolute() && path.file_name().is_some());
            assert!(!path.components().any(|c| c == Component::ParentDir));
            assert_ne!(path.as_path(), Path::new("/"));
        }
        if let Ok(name) = validate::name("name", &text) {
            assert_eq!(name, text);
            assert!(!name.is_empty() && name.len() <= 128 && !name.contains('\0'));
        }
    }
);

target!(
    /// What a class may mount with reaches mount(2) only in words that are allowed by themselves.
    mount_options,
    |bytes: &[u8]| {
        let like = [
            "noatime,commit=5,errors=remount-ro",
            "context=\"u:r:t:s0:c1,c2.c3,c4-s1:c5\",rtdev=/dev/sda",
            "x-a=\"b,logdev=/dev/sda,c=\"",
            "compress=zstd:3,subvol=@a/b,device=/dev/sda",
            "journal_path=/dev/sda,journal_dev=2049",
        ];
        let text = text_like(bytes, &like.map(String::from));
        let flags: Vec<String> = text.split(' ').map(str::to_owned).collect();
        for fs in FsType::ALL {
            if check_mount_options(fs, &flags).is_err() {
                continue;
            }
            const DEVICES: [&str; 5] = ["rtdev", "logdev", "device", "journal_path", "journal_dev"];
            for word in flags.iter().flat_map(|flag| flag.split(',')) {
                let name = word.split_once('=').map_or(word, |(name, _)| name);
                assert!(!DEVICES.contains(&name.trim_matches('"')), "{fs} {text:?}");
                assert!(name.is_ascii() || name.starts_with(['x', 'X', 'c']), "{fs} {text:?}");
            }
        }
    }
);

/// Arbitrary text, or a slightly changed `real` one, as few arbitrary texts come close to those.
fn text_like(bytes: &[u8], real: &[String]) -> String {
    let mut entropy = Entropy::new(bytes);
    let text = if entropy.chance(64) {
        bytes.to_vec()
    } else {
        let base = entropy.pick(real).as_bytes();
        if entropy.chance(32) {
            base.to_vec()
        } else {
            entropy.mutate(base)
        }
    };
    String::from_utf8_lossy(&text).into_owned()
}

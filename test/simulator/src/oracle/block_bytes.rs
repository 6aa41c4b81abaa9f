//! The bytes of a block device are never mounted: its users can write any filesystem to it, and a
//! kernel trusts the filesystem that it mounts. Here, no administrator allows it.

use std::collections::BTreeSet;

use hostloop_driver::storage::{Source, VolumeRecord};

use crate::cluster::Cluster;
use crate::machine::Contents;
use crate::trace;

/// The handles of the volumes and snapshots with bytes of block devices. They stay known when their
/// volumes go.
#[derive(Default)]
pub(super) struct BlockBytes(BTreeSet<String>);

/// What the record of a volume or snapshot says of its bytes.
struct Bytes {
    handle: String,
    /// The handle of what it was copied or taken from.
    source: Option<String>,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    BlockDevice,
    Filesystem,
    Snapshot,
}

impl BlockBytes {
    /// Notes what the pools have, and checks the volumes with filesystems.
    pub(super) fn check(&mut self, cluster: &Cluster) {
        for machine in &cluster.machines {
            for breach in self.breaches(&all_of(&machine.contents())) {
                trace::violation(breach);
            }
        }
    }

    fn breaches(&mut self, all: &[Bytes]) -> Vec<String> {
        for device in all.iter().filter(|one| one.form == Form::BlockDevice) {
            self.0.insert(device.handle.clone());
        }
        for snapshot in all.iter().filter(|one| one.form == Form::Snapshot) {
            if self.is_of_device(snapshot) {
                self.0.insert(snapshot.handle.clone());
            }
        }
        let mounted = all.iter().filter(|one| one.form == Form::Filesystem);
        mounted
            .filter(|one| self.is_of_device(one))
            .map(|one| {
                format!(
                    "bytes of a block device are mounted: volume {} has a filesystem, and was copied \
                     from {}",
                    one.handle,
                    one.source.as_deref().unwrap_or_default()
                )
            })
            .collect()
    }

    /// True if this was made of the bytes of a block device.
    fn is_of_device(&self, one: &Bytes) -> bool {
        let source = one.source.as_ref();
        source.is_some_and(|source| self.0.contains(source))
    }
}

/// What of a pool can be read.
fn all_of(contents: &Contents) -> Vec<Bytes> {
    let volumes = contents.volumes.iter();
    let volumes = volumes.filter_map(|volume| of_volume(volume));
    let snapshots = contents.snapshots.iter().map(|snapshot| Bytes {
        handle: snapshot.id.to_string(),
        source: Some(snapshot.source.to_string()),
        form: Form::Snapshot,
    });
    volumes.chain(snapshots).collect()
}

fn of_volume(volume: &VolumeRecord) -> Option<Bytes> {
    let capability = volume.capabilities.first()?;
    let form = if capability.access.fs().is_some() {
        Form::Filesystem
    } else {
        Form::BlockDevice
    };
    let source = volume.source.as_deref().map(|source| match source {
        Source::Snapshot(id) => id.to_string(),
        Source::Volume(id) => id.to_string(),
    });
    Some(Bytes {
        handle: volume.id.to_string(),
        source,
        form,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Form::{BlockDevice, Filesystem, Snapshot};
    use super::*;

    fn bytes(handle: &str, source: Option<&str>, form: Form) -> Bytes {
        Bytes {
            handle: handle.to_owned(),
            source: source.map(str::to_owned),
            form,
        }
    }

    #[rstest]
    #[case::new(None, Filesystem, 0)]
    #[case::of_a_filesystem(Some("f"), Filesystem, 0)]
    #[case::of_its_snapshot(Some("of-f"), Filesystem, 0)]
    #[case::of_a_device(Some("d"), Filesystem, 1)]
    #[case::of_a_devices_snapshot(Some("of-d"), Filesystem, 1)]
    #[case::another_device(Some("of-d"), BlockDevice, 0)]
    fn copies(#[case] source: Option<&str>, #[case] form: Form, #[case] expected: usize) {
        let mut known = BlockBytes::default();
        let sources = [
            bytes("f", None, Filesystem),
            bytes("of-f", Some("f"), Snapshot),
            bytes("of-d", Some("d"), Snapshot),
            bytes("d", None, BlockDevice),
        ];
        assert!(known.breaches(&sources).is_empty());
        // What it was copied from is gone by now.
        let found = known.breaches(&[bytes("c", source, form)]);
        assert_eq!(found.len(), expected, "{found:?}");
    }
}

//! Images are as their records say, and records as the API server knows them, also after a power cut.
//! The records are those that the driver knows, so the image of a volume must be there as long as the
//! driver says that the volume is.

use std::path::Path;
use std::sync::Arc;

use hostloop_driver::diagnose::Problem;
use hostloop_driver::kernel::{Filesystems, Probe};
use hostloop_driver::storage::Format;
use hostloop_report::pool_files::{IMAGE, SNAPSHOTS, VOLUMES};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::machine::{Contents, Machine};
use crate::trace;
use crate::users::bytes;

/// What a volume or snapshot has.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// The bytes that the API server knows of, or 0.
    promised: u64,
    /// The bytes in its record.
    recorded: u64,
    /// The record says that there is a filesystem.
    is_formatted: bool,
    /// The bytes of its image, if there is one.
    image: Option<u64>,
    has_filesystem: bool,
}

impl Facts {
    /// What is lost, if something is.
    fn loss(self) -> Option<String> {
        let Facts {
            promised, recorded, ..
        } = self;
        match self.image {
            None => Some("has no image".to_owned()),
            _ if recorded < promised => Some(format!(
                "has {promised} bytes, and its record says {recorded}"
            )),
            Some(bytes) if bytes < recorded => Some(format!(
                "has an image of {bytes} bytes, and its record says {recorded}"
            )),
            Some(_) if self.is_formatted && !self.has_filesystem => {
                Some("has no filesystem, and its record says that it has one".to_owned())
            }
            Some(_) => None,
        }
    }
}

/// Checks the readable records and the images of all nodes. `objects` are the PersistentVolumes.
pub(super) fn are_whole(cluster: &Cluster, objects: &[Arc<Value>]) {
    for machine in &cluster.machines {
        let Contents {
            volumes, snapshots, ..
        } = machine.contents();
        for volume in volumes {
            let handle = volume.id.to_string();
            let object = objects
                .iter()
                .find(|object| object["spec"]["csi"]["volumeHandle"] == handle);
            let promised = object.map_or(0, |object| bytes(&object["spec"]["capacity"]["storage"]));
            let recorded = (volume.capacity_bytes, volume.format);
            check(machine, (VOLUMES, handle.as_str()), promised, recorded);
        }
        for snapshot in snapshots {
            let handle = snapshot.id.to_string();
            let recorded = (snapshot.size_bytes, snapshot.format);
            check(machine, (SNAPSHOTS, handle.as_str()), 0, recorded);
        }
    }
}

/// Checks that recovery found nothing that neither a death nor a power cut may leave.
pub(super) fn are_known(cluster: &Cluster) {
    for pools in cluster.machines.iter().filter_map(Machine::pools) {
        for noted in pools.noted_problems() {
            let is_loss = matches!(
                noted.problem,
                Problem::ImageMissing { .. }
                    | Problem::ImageShort { .. }
                    | Problem::ImageUnreadable(_)
                    | Problem::UnknownFile
                    | Problem::GroupMissing(_)
                    | Problem::GroupIncomplete(_)
            );
            if is_loss {
                trace::violation(format!("a pool suffers: {noted}"));
            }
        }
    }
}

/// Checks what has this handle in this folder, with the size and the format in its record.
fn check(
    machine: &Machine,
    (folder, handle): (&str, &str),
    promised: u64,
    (recorded, format): (u64, Format),
) {
    let image = machine.pool().join(folder).join(handle).join(IMAGE);
    let facts = Facts {
        promised,
        recorded,
        is_formatted: matches!(format, Format::Done(_)),
        image: std::fs::metadata(&image).map(|found| found.len()).ok(),
        has_filesystem: has_filesystem(machine, &image),
    };
    if let Some(loss) = facts.loss() {
        trace::violation(format!("data lost: {handle} {loss}"));
    }
}

fn has_filesystem(machine: &Machine, image: &Path) -> bool {
    let found = machine.kernel().probe(image);
    matches!(found, Ok(Probe::Filesystem { .. }))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const WHOLE: Facts = Facts {
        promised: 8,
        recorded: 8,
        is_formatted: true,
        image: Some(8),
        has_filesystem: true,
    };

    #[rstest]
    #[case::whole(WHOLE, None)]
    #[case::raw(Facts { is_formatted: false, has_filesystem: false, ..WHOLE }, None)]
    #[case::expanded_without_an_answer(
        Facts { recorded: 12, image: Some(12), ..WHOLE },
        None
    )]
    #[case::image_expanded_before_its_record(Facts { image: Some(12), ..WHOLE }, None)]
    #[case::no_image(Facts { image: None, ..WHOLE }, Some("has no image"))]
    #[case::short_image(
        Facts { image: Some(4), ..WHOLE },
        Some("has an image of 4 bytes, and its record says 8")
    )]
    #[case::old_record(
        Facts { recorded: 4, ..WHOLE },
        Some("has 8 bytes, and its record says 4")
    )]
    #[case::blank(
        Facts { has_filesystem: false, ..WHOLE },
        Some("has no filesystem, and its record says that it has one")
    )]
    fn what_is_lost(#[case] facts: Facts, #[case] expected: Option<&str>) {
        assert_eq!(facts.loss().as_deref(), expected);
    }
}

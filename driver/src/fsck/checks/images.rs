//! Records against their images.

use std::cmp::Ordering;

use crate::pool::Provisioning;
use crate::status::units::bytes;
use crate::survey::{Contents, Image};

use super::{Kind, Problem, Repair, Severity, person, problem};

/// Images that are missing, of another size than recorded, or not as thick as promised.
pub(super) fn check(contents: &Contents, found: &mut Vec<Problem>) {
    for item in &contents.volumes {
        let Ok(volume) = &item.record else { continue };
        match &item.image {
            None => found.push(missing(&item.name, "the volume's")),
            Some(image) => {
                found.extend(size(&item.name, image, volume.capacity_bytes));
                if volume.settings.provisioning == Provisioning::Thick {
                    found.extend(not_thick(&item.name, image, volume.capacity_bytes));
                }
            }
        }
    }
    for item in &contents.snapshots {
        let Ok(snapshot) = &item.record else { continue };
        match &item.image {
            None => found.push(missing(&item.name, "the snapshot's")),
            Some(image) => found.extend(size(&item.name, image, snapshot.size_bytes)),
        }
    }
}

fn missing(name: &str, whose: &str) -> Problem {
    problem(
        Severity::Error,
        Kind::ImageMissing,
        name,
        "has a record and no image",
        person(format!(
            "bring {whose} image back from a backup, or delete it"
        )),
    )
}

fn size(name: &str, image: &Image, recorded: u64) -> Option<Problem> {
    let (have, want) = (bytes(image.bytes), bytes(recorded));
    match image.bytes.cmp(&recorded) {
        Ordering::Equal => None,
        Ordering::Less => Some(problem(
            Severity::Error,
            Kind::ImageShort,
            name,
            format!("has an image of {have} and a record of {want}: the end is lost"),
            person("bring it back from a snapshot or a backup"),
        )),
        Ordering::Greater => Some(problem(
            Severity::Warning,
            Kind::ImageLong,
            name,
            format!("has an image of {have} and a record of {want}: an expansion was cut short"),
            Repair::Itself("the next ControllerExpandVolume completes it".to_owned()),
        )),
    }
}

fn not_thick(name: &str, image: &Image, recorded: u64) -> Option<Problem> {
    (image.allocated < recorded).then(|| {
        problem(
            Severity::Warning,
            Kind::NotThick,
            name,
            format!(
                "is thick, and {} of its {} are allocated",
                bytes(image.allocated),
                bytes(recorded)
            ),
            person("make room in the pool, then set provisioning=thick again"),
        )
    })
}

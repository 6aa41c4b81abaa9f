//! The story: what is shown, in which order, and why. Each step is a function of its own.

use super::error::Result;
use super::world::World;

mod blocks;
mod copies;
mod data;
mod end;
mod group;
mod inline;
mod life;
mod raw;
mod start;

pub(super) use end::tell_remains as remains;

/// A step of the story.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// What it shows, in a few words.
    pub(super) title: &'static str,
    /// What is called, and why.
    pub(super) why: &'static str,
    /// What it does.
    pub(super) act: fn(&mut World) -> Result<()>,
    /// It takes away what others made: left out with `--keep`.
    pub(super) ends: bool,
}

const fn step(title: &'static str, why: &'static str, act: fn(&mut World) -> Result<()>) -> Step {
    Step {
        title,
        why,
        act,
        ends: false,
    }
}

const fn end(title: &'static str, why: &'static str, act: fn(&mut World) -> Result<()>) -> Step {
    Step {
        title,
        why,
        act,
        ends: true,
    }
}

/// All of them.
pub(super) const STEPS: &[Step] = &[
    step(
        "The driver starts",
        "It opens its pool, puts right what an earlier process may have left, and only then \
         answers on its socket. The orchestrator asks who it is and what it can do.",
        start::start,
    ),
    step(
        "How much room is there?",
        "GetCapacity says what can really be promised: a scheduler sends pods only where their \
         volumes fit.",
        start::capacity,
    ),
    step(
        "Create a volume",
        "CreateVolume makes a record and a sparse file. Nothing is attached yet, and next to \
         nothing is taken from the disk. Asked again with the same name, the driver answers with \
         the same volume.",
        life::create,
    ),
    step(
        "Publish it to the node",
        "ControllerPublishVolume notes that this node may use it. For a local volume there is \
         nothing else to do.",
        life::attach,
    ),
    step(
        "Stage it",
        "NodeStageVolume attaches the image to a loop device (4096-byte blocks, direct I/O), makes \
         the filesystem, since the record says there is none, and mounts it at kubelet's staging \
         path.",
        life::stage,
    ),
    step(
        "Mount it into a pod",
        "NodePublishVolume binds the staged filesystem to the pod's own path.",
        life::publish,
    ),
    step(
        "The pod writes",
        "The image grows on the disk by what is written, and by no more.",
        data::write,
    ),
    step(
        "Statistics and health",
        "Kubelet asks how full the volume is; a monitor asks whether anything is wrong with it, \
         or with the storage under it.",
        data::stats,
    ),
    step(
        "Expand it while it is in use",
        "ControllerExpandVolume makes the image longer, NodeExpandVolume the loop device and the \
         filesystem. The pod goes on writing meanwhile.",
        data::expand,
    ),
    step(
        "Take a snapshot",
        "The filesystem is frozen for a moment, the image is cloned, the filesystem thaws: what \
         the pod has written is in the snapshot, whole.",
        copies::snapshot,
    ),
    step(
        "The pod goes on writing",
        "The first file is overwritten in part, and another one is written. The snapshot keeps \
         what was.",
        copies::write_more,
    ),
    step(
        "Restore the snapshot to a larger volume",
        "CreateVolume with a snapshot as its source, half as large again. The filesystem grows \
         when the volume is staged.",
        copies::restore,
    ),
    step(
        "Clone the volume",
        "CreateVolume with a volume as its source: a copy of what it holds now, taken while the \
         pod uses it.",
        copies::clone,
    ),
    step(
        "Which blocks changed?",
        "A second snapshot, and GetMetadataDelta between the two: a backup program has to read \
         these blocks and no others. Checked by comparing the two images byte by byte.",
        blocks::changed,
    ),
    step(
        "Snapshot two volumes at one moment",
        "A program writes the same number to one volume and then to the other, again and again. \
         A group snapshot catches both at one point in time, so the numbers in it differ by one at \
         most.",
        group::group,
    ),
    step(
        "A raw block device",
        "A volume without a filesystem, with all its space taken at once. One pod writes to the \
         device; another has it read-only, and the kernel refuses its writes.",
        raw::block,
    ),
    step(
        "A volume that lives as long as its pod",
        "An inline volume: a single NodePublishVolume makes, formats and mounts it, and \
         NodeUnpublishVolume leaves nothing of it.",
        inline::inline,
    ),
    step(
        "Modify a volume in use",
        "ControllerModifyVolume changes how far ahead the mounted volume reads, and has space that \
         the pod frees go back to the pool at once (an XFS does from the beginning: it can't \
         change that while it is mounted).",
        data::modify,
    ),
    step(
        "The driver is killed",
        "SIGKILL, in the middle of everything. Mounts and loop devices outlive it, the pod does \
         not notice, and the next driver knows all it must from disk and kernel.",
        start::kill,
    ),
    end(
        "In use is in use",
        "DeleteVolume of a volume that is published is refused; nothing of it changes.",
        end::refuse,
    ),
    end(
        "The pods go",
        "NodeUnpublishVolume for every pod, NodeUnstageVolume when the last is gone: unmounted, \
         loop devices detached.",
        end::pods,
    ),
    end(
        "The volumes go",
        "ControllerUnpublishVolume and DeleteVolume. The snapshots outlive their volume, and are \
         deleted after it.",
        end::volumes,
    ),
    end(
        "Nothing is left",
        "The driver stops, its pool is unmounted, and what the machine shows now is compared with \
         what it showed before.",
        end::nothing_left,
    ),
];

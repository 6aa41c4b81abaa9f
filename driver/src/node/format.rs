//! Whether a device may be formatted, and formatting it: `mkfs` runs only where the record and a
//! look at the device agree that nothing of anybody's is there.

use super::{Error, Node, Result};
use crate::kernel::{FsType, LoopDevice, MkfsSpec, Probe, check_mkfs_options};
use crate::storage::{Format, Provisioning, VolumeRecord};

/// What is to be done with a device before it can be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormatStep {
    /// The filesystem asked for is there.
    Keep,
    /// Make it.
    Make {
        /// Overwrite the unfinished filesystem of an mkfs that the driver started.
        force: bool,
    },
}

/// Decides by how far formatting got, what the device carries, and what is asked for.
///
/// A volume copied from another inherits how far that one's formatting got, so a copy of what was
/// formatted is never formatted again, whatever it looks like; a copy of a volume that nobody has
/// used yet is as blank as that one, and is formatted like it.
pub(crate) fn decide(format: Format, found: &Probe, asked: FsType) -> Result<FormatStep> {
    match (format, found) {
        // Nobody was given this device yet, so all that is on it is ours.
        (Format::Formatting(_), _) => Ok(FormatStep::Make { force: true }),
        (Format::None, Probe::Blank) => Ok(FormatStep::Make { force: false }),
        (Format::Done(fs), Probe::Blank) => Err(Error::DataLoss(format!(
            "the volume had a {fs} filesystem, and its device is blank now: data was lost; it is \
             left as it is"
        ))),
        (Format::Done(fs), Probe::Filesystem { fs: found, .. }) if fs == *found && fs == asked => {
            Ok(FormatStep::Keep)
        }
        (Format::Raw, Probe::Filesystem { fs, .. }) if *fs == asked => Ok(FormatStep::Keep),
        (Format::Done(fs), Probe::Unknown { .. } | Probe::Unfinished { .. }) => {
            Err(Error::DataLoss(format!(
                "the volume had a {fs} filesystem, and its device carries none now: data was lost; \
                 it is left as it is"
            )))
        }
        (Format::Raw, Probe::Blank | Probe::Unknown { .. }) => Err(refuse(
            asked,
            "it was handed out as a block device, carries no filesystem, and is never formatted",
        )),
        (Format::None, Probe::Unknown { offset }) => Err(refuse(
            asked,
            format!("it was never formatted, but holds data at offset {offset}"),
        )),
        (_, Probe::Unfinished { fs, .. }) => Err(refuse(
            asked,
            format!("it carries {fs} whose mkfs did not end"),
        )),
        (_, Probe::Ambivalent) => Err(refuse(
            asked,
            "it carries more than one signature, so what it holds is unclear",
        )),
        (_, Probe::Other(name)) => Err(refuse(asked, format!("it carries {name}"))),
        (Format::Done(fs), Probe::Filesystem { fs: found, .. }) if fs != *found => Err(refuse(
            asked,
            format!("it was formatted as {fs} and carries {found}"),
        )),
        (Format::None, Probe::Filesystem { fs, .. }) => Err(refuse(
            asked,
            format!("it carries {fs}, which was not made by this driver"),
        )),
        (_, Probe::Filesystem { fs, .. }) => Err(refuse(asked, format!("it carries {fs}"))),
    }
}

fn refuse(asked: FsType, why: impl std::fmt::Display) -> Error {
    Error::FailedPrecondition(format!("the volume can't be mounted as {asked}: {why}"))
}

impl Node {
    /// Makes the filesystem. The record says so from before it until the volume is staged: up to
    /// there it is nobody's, and a crash has it made again.
    pub(super) fn format(
        &self,
        record: &VolumeRecord,
        device: &LoopDevice,
        fs: FsType,
        force: bool,
    ) -> Result<()> {
        // CreateVolume checks these options, but older versions accepted any.
        check_mkfs_options(fs, &record.mkfs_options).map_err(|why| {
            Error::FailedPrecondition(format!(
                "the volume can't be formatted: mkfsOptions: {why}; correct the class and create \
                 the volume again"
            ))
        })?;
        if record.format != Format::Formatting(fs) {
            self.pools
                .update_volume(&record.id, |r| r.format = Format::Formatting(fs))?;
        }
        let kernel = self.pools.kernel();
        kernel.mkfs(&MkfsSpec {
            device: &device.path(),
            fs,
            options: &record.mkfs_options,
            discard: record.settings.provisioning == Provisioning::Thin,
            uuid: None,
            force,
        })?;
        // On the disk before the record says that it is made.
        Ok(kernel.loop_flush(device)?)
    }
}

#[cfg(test)]
mod tests;

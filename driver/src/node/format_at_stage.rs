//! Decides whether a volume's device may be formatted while it is staged, and formats it. `mkfs`
//! runs only if both the record and a probe of the device show that it holds no data. CreateVolume
//! has formatted most volumes already (`storage/volumes/format_at_create.rs`).

use std::cell::Cell;

use super::{Error, Node, Result};
use crate::kernel::{self, FsType, LoopDevice, MkfsSpec, Probe, check_mkfs_options};
use crate::storage::{Format, Provisioning, VolumeRecord};

/// The action before a device can be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormatStep {
    /// Keep the filesystem: it is the requested one.
    Keep,
    /// Make the filesystem.
    Make {
        /// Overwrite the unfinished filesystem of an mkfs that the driver started.
        force: bool,
    },
}

/// Decides by the format state of the record, the contents of the device and the requested
/// filesystem.
///
/// A copy inherits the format state of its source. So a copy of a formatted volume is never
/// formatted again, whatever the device contains. A copy of a volume that was never used is blank
/// and is formatted like its source.
pub(crate) fn decide(format: Format, found: &Probe, requested: FsType) -> Result<FormatStep> {
    match (format, found) {
        // No user had this device yet, so everything on it comes from the driver.
        (Format::Formatting(_), _) => Ok(FormatStep::Make { force: true }),
        (Format::None, Probe::Blank) => Ok(FormatStep::Make { force: false }),
        (Format::Done(fs), Probe::Blank | Probe::Unknown { .. } | Probe::Unfinished { .. }) => {
            let now = if matches!(found, Probe::Blank) {
                "is blank"
            } else {
                "has none"
            };
            Err(Error::DataLoss(format!(
                "the volume had a {fs} filesystem, and its device {now} now: data was lost; it is \
                 left as it is"
            )))
        }
        (Format::Done(fs), Probe::Filesystem { fs: found, .. })
            if fs == *found && fs == requested =>
        {
            Ok(FormatStep::Keep)
        }
        (Format::Raw, Probe::Filesystem { fs, .. }) if *fs == requested => Ok(FormatStep::Keep),
        (Format::Raw, Probe::Blank | Probe::Unknown { .. }) => Err(refuse(
            requested,
            "it was handed out as a block device, carries no filesystem, and is never formatted",
        )),
        (Format::None, Probe::Unknown { offset }) => Err(refuse(
            requested,
            format!("it was never formatted, but holds data at offset {offset}"),
        )),
        (_, Probe::Unfinished { fs, .. }) => Err(refuse(
            requested,
            format!("it carries an unfinished {fs}: its mkfs did not end"),
        )),
        (_, Probe::Ambivalent) => Err(refuse(
            requested,
            "it carries more than one signature, so what it holds is unclear",
        )),
        (_, Probe::Other(name)) => Err(refuse(requested, format!("it carries {name}"))),
        (Format::Done(fs), Probe::Filesystem { fs: found, .. }) if fs != *found => Err(refuse(
            requested,
            format!("it was formatted as {fs} and carries {found}"),
        )),
        (Format::None, Probe::Filesystem { fs, .. }) => Err(refuse(
            requested,
            format!("it carries {fs}, which was not made by this driver"),
        )),
        (_, Probe::Filesystem { fs, .. }) => Err(refuse(requested, format!("it carries {fs}"))),
    }
}

fn refuse(requested: FsType, why: impl std::fmt::Display) -> Error {
    Error::FailedPrecondition(format!("the volume can't be mounted as {requested}: {why}"))
}

impl Node {
    /// Makes the filesystem. From before mkfs until the volume is staged, the record says
    /// `Formatting`: no user has the volume yet, and after a crash mkfs runs again. `mkfs_began`
    /// becomes true right before mkfs, and false again if the program does not start.
    pub(super) fn format(
        &self,
        record: &VolumeRecord,
        device: &LoopDevice,
        fs: FsType,
        force: bool,
        blank: bool,
        mkfs_began: &Cell<bool>,
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
        mkfs_began.set(true);
        let made = kernel.mkfs(&MkfsSpec {
            device: &device.path(),
            image: None,
            fs,
            options: &record.mkfs_options,
            // An image without data needs no discard and no overwrite.
            discard: !blank && record.settings.provisioning == Provisioning::Thin,
            uuid: None,
            force: force && !blank,
        });
        if let Err(kernel::Error::NotRun { .. }) = &made {
            mkfs_began.set(false);
        }
        made?;
        // Write the filesystem to disk before the record says that it exists.
        Ok(kernel.loop_flush(device)?)
    }
}

#[cfg(test)]
mod tests;

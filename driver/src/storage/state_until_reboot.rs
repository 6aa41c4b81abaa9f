//! `state.json`: the part of a volume's record that describes the running kernel.
//!
//! Staging and freezing end with the kernel, so this file is replaced without an fsync. A killed
//! process leaves the old file or the new one. A power cut may leave anything, but then the boot ID
//! differs, and the file is ignored. No file means that the volume is neither staged nor frozen.

use std::os::fd::BorrowedFd;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::encoding::{self, decode_versioned};
use super::{FreezeIntent, Result, Stage, VolumeId, VolumeRecord};
use crate::kernel::{self, file};
use crate::record::SCHEMA;

#[cfg(test)]
mod tests;

/// The name of the file in the entry's directory.
pub(super) const FILE: &str = "state.json";

/// The content of `state.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateUntilReboot {
    schema: u32,
    /// The ID of the boot that the rest describes.
    boot: String,
    stage: Option<Box<Stage>>,
    freeze: Option<FreezeIntent>,
}

impl VolumeRecord {
    /// The part of the record in `volume.json`. It includes the stage of an inline volume: after a
    /// reboot, the path still shows whether the volume's pod exists.
    pub(super) fn durable(&self) -> VolumeRecord {
        let stage = self.inline.is_some().then(|| self.stage.clone()).flatten();
        VolumeRecord {
            stage,
            freeze: None,
            ..self.clone()
        }
    }

    /// True if `volume.json` has the same content for both records.
    pub(crate) fn same_durable(&self, other: &VolumeRecord) -> bool {
        self.durable() == other.durable()
    }

    /// The part of the record in `state.json`.
    fn of_boot(&self) -> (Option<&Stage>, Option<FreezeIntent>) {
        (
            self.stage.as_deref().filter(|_| self.inline.is_none()),
            self.freeze,
        )
    }

    /// True if both records have the same state.
    pub(super) fn same_state_until_reboot(&self, other: &VolumeRecord) -> bool {
        self.of_boot() == other.of_boot()
    }

    /// This record with the state of another one.
    pub(super) fn with_state_until_reboot(&self, of: &VolumeRecord) -> VolumeRecord {
        let (stage, freeze) = of.of_boot();
        let mut record = self.durable();
        record.stage = record.stage.or_else(|| stage.cloned().map(Box::new));
        record.freeze = freeze;
        record
    }
}

/// Encodes the state; `None` if there is none.
pub(super) fn encode(record: &VolumeRecord, boot: &str) -> Result<Option<Vec<u8>>> {
    let (stage, freeze) = record.of_boot();
    encode_parts(stage, freeze, boot)
}

/// Encodes the state of a volume without a usable record, like [`encode`].
pub(super) fn encode_parts(
    stage: Option<&Stage>,
    freeze: Option<FreezeIntent>,
    boot: &str,
) -> Result<Option<Vec<u8>>> {
    if stage.is_none() && freeze.is_none() {
        return Ok(None);
    }
    let boot = boot.to_owned();
    let state = StateUntilReboot {
        schema: SCHEMA,
        boot,
        stage: stage.cloned().map(Box::new),
        freeze,
    };
    encoding::encode(&state, FILE).map(Some)
}

/// Writes an encoded state into the entry's directory.
pub(super) fn write(dir: BorrowedFd<'_>, state: Option<&[u8]>) -> kernel::Result<()> {
    match state {
        Some(state) => file::replace_unsynced(dir, FILE, state),
        None => file::remove(dir, FILE),
    }
}

/// Adds the state in the file at `path` to a record that was read from `volume.json`. A state in
/// that record was written by version 0.1.0, which had no other file, and counts.
pub(super) fn add(record: &mut VolumeRecord, dir: BorrowedFd<'_>, path: &Path, boot: &str) {
    let (stage, freeze) = read(record.id, dir, path, boot);
    record.stage = record.stage.take().or(stage);
    record.freeze = record.freeze.or(freeze);
}

/// Reads the state of a volume in the file at `path`. Ignores an unreadable file.
pub(super) fn read(
    id: VolumeId,
    dir: BorrowedFd<'_>,
    path: &Path,
    boot: &str,
) -> (Option<Box<Stage>>, Option<FreezeIntent>) {
    let mut bytes = Vec::new();
    let state = match encoding::read_whole(dir, path, &mut bytes) {
        Ok(()) => decode(&bytes, boot),
        Err(kernel::Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(e.to_string()),
    };
    let state = state.unwrap_or_else(|why| {
        tracing::warn!(volume = %id, why, "{FILE} is ignored");
        None
    });
    let (stage, freeze) = state.map_or((None, None), |state| (state.stage, state.freeze));
    if let Some(disk) = stage.as_ref().and_then(|stage| stage.disk) {
        // Each process that reads the record may look for the volume's loop device.
        kernel::stand_in(disk.file, disk.image);
    }
    (stage, freeze)
}

/// Decodes a state; `None` if another boot wrote it.
fn decode(bytes: &[u8], boot: &str) -> std::result::Result<Option<StateUntilReboot>, String> {
    let state: StateUntilReboot = decode_versioned(bytes)?;
    Ok((state.boot == boot).then_some(state))
}

//! Attaches the lost device of a raw block volume again, under its old number: the volume's targets
//! are bound to that device node.

use std::fs::File;

use super::{LoopStep, unrepaired, unstaged, used};
use crate::diagnose::{KernelState, VolumeState};
use crate::kernel::{self, Kernel, LoopSpec};
use crate::storage::{Stage, VolumeRecord};

/// The steps for a volume staged as a raw block device, after other idle devices are detached. Its
/// targets are bound to one device node by number, and stay bound if the device is detached or
/// holds another file.
pub(super) fn decide(
    stage: &Stage,
    idle: &[u32],
    busy: &[u32],
    state: &VolumeState,
) -> Vec<LoopStep> {
    let kernel_state = state.kernel();
    let Some(minor) = stage.minor else {
        // The staging was interrupted before a device was reported.
        return unstaged(busy, kernel_state, "though its staging was never finished");
    };
    let lost = state.lost_read_only(stage).map(|(_, ro)| ro);
    let lost: Vec<u32> = lost.filter(|ro| kernel_state.is_bound(*ro)).collect();
    let mut steps = Vec::new();
    if !idle.contains(&minor) && !busy.contains(&minor) {
        if !kernel_state.is_bound(minor) && lost.is_empty() {
            return unstaged(
                busy,
                kernel_state,
                "which is not the device it is staged on",
            );
        }
        if kernel_state.device(minor).is_some() {
            return vec![unrepaired(minor_taken(minor, kernel_state))];
        }
        if let Some(other) = busy.first() {
            let but = format!("while targets are bound to /dev/loop{minor}");
            return used(&[*other], kernel_state, &but);
        }
        steps.push(LoopStep::Attach(minor));
    }
    let over = minor;
    steps.extend(
        lost.into_iter()
            .map(|minor| match kernel_state.device(minor) {
                Some(_) => unrepaired(minor_taken(minor, kernel_state)),
                None => LoopStep::AttachReadOnly { minor, over },
            }),
    );
    steps
}

/// Describes targets that are bound to a device with another file.
pub(super) fn minor_taken(minor: u32, kernel_state: &KernelState) -> String {
    let bound = kernel_state.mounts.of_loop_node(minor);
    let targets = bound.map(|m| m.mount_point.display().to_string());
    let targets = targets.collect::<Vec<_>>().join(", ");
    format!(
        "its targets ({targets}) are bound to /dev/loop{minor}, which now holds another file: unpublish them"
    )
}

/// Attaches a file at this minor, with the volume's settings.
pub(super) fn attach(
    kernel: &dyn Kernel,
    volume: &VolumeRecord,
    backing: &File,
    minor: u32,
    read_only: bool,
) -> kernel::Result<()> {
    let settings = &volume.settings;
    let device = kernel.loop_attach(&LoopSpec {
        backing,
        label: &volume.id.to_string(),
        offset: 0,
        read_only,
        direct_io: settings.direct_io,
        autoclear: false,
        minor: Some(minor),
    })?;
    kernel.loop_set_read_ahead(&device, settings.read_ahead())
}

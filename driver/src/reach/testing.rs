//! Markers and pins for tests.

use super::markers::Marker;
use super::pins;
use crate::kernel::{FileId, LOOP_MAJOR, LoopInfo};

/// The marker of a node of the kernel `kernel`, with a nonce of this digit alone.
pub(crate) fn marker(node: &str, digit: char) -> Marker {
    Marker {
        kernel: "kernel".to_owned(),
        node: node.to_owned(),
        nonce: digit.to_string().repeat(32),
    }
}

/// A device over a file of its own, at this path.
pub(crate) fn device(minor: u32, backing_path: String) -> LoopInfo {
    LoopInfo {
        minor,
        backing: Some(FileId {
            dev: 1,
            ino: minor.into(),
        }),
        backing_path,
        ..LoopInfo::default()
    }
}

/// The device that is a marker.
pub(crate) fn marker_device(minor: u32, marker: &Marker) -> LoopInfo {
    LoopInfo {
        read_only: true,
        autoclear: true,
        ..device(minor, format!("/state/kernel/{}", marker.file_name()))
    }
}

/// A pin over device `over`, of the container with this marker.
pub(crate) fn pin_device(minor: u32, over: u32, marker: &Marker) -> LoopInfo {
    LoopInfo {
        backing_rdev: rustix::fs::makedev(LOOP_MAJOR, over),
        label: pins::label(&marker.nonce),
        offset: pins::OFFSET,
        read_only: true,
        ..device(minor, format!("/dev/loop{over}"))
    }
}

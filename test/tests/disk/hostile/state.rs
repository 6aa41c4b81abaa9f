//! What a hostile request must not change: every file of the pool and of the paths around, and the
//! kernel's loops and mounts.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hostloop_test::data::Checksum;
use hostloop_test::leaks::{mount_points, mountinfo};
use hostloop_test::loop_devices;

/// Files up to this size are compared by content, larger ones by length, blocks and time.
const SMALL: u64 = 256 << 10;

/// One line per file, mount and loop device.
pub(crate) type State = BTreeMap<String, String>;

/// Looks at everything beneath these directories, without crossing into mounts of volumes, and at
/// the kernel's tables beneath `scratch`.
pub(crate) fn look(scratch: &Path, trees: &[&Path]) -> State {
    let mut state = State::new();
    let devices = loop_devices::beneath(scratch);
    let attached: Vec<_> = devices.iter().map(|l| l.backing_inode).collect();
    for tree in trees {
        let device = std::fs::symlink_metadata(tree)
            .expect("the tree is there")
            .dev();
        walk(tree, device, &attached, &mut state);
    }
    for (n, mount) in mount_points(&mountinfo("self"), scratch)
        .into_iter()
        .enumerate()
    {
        state.insert(format!("mount {n}"), mount.display().to_string());
    }
    for device in devices {
        state.insert(format!("loop {}", device.minor), format!("{device:?}"));
    }
    state
}

fn walk(path: &Path, device: u64, attached: &[u64], state: &mut State) {
    let meta = match std::fs::symlink_metadata(path) {
        // It has gone since its directory was read.
        Err(e) if e.kind() == ErrorKind::NotFound => return,
        meta => meta.unwrap_or_else(|e| panic!("{}: {e}", path.display())),
    };
    // The content of a volume belongs to its user.
    if meta.dev() != device {
        return;
    }
    let mut line = format!(
        "mode {:o} length {} owner {}",
        meta.mode(),
        meta.len(),
        meta.uid()
    );
    if meta.is_symlink() {
        let to = std::fs::read_link(path).expect("it is a symlink");
        line += &format!(" to {}", to.display());
    } else if meta.is_file() && meta.len() <= SMALL {
        let bytes = std::fs::read(path).unwrap_or_default();
        line += &match String::from_utf8(bytes) {
            Ok(text) if text.len() < 4096 => format!(" content {text}"),
            Ok(text) => format!(" content {:?}", Checksum::of(text.as_bytes())),
            Err(other) => format!(" content {:?}", Checksum::of(other.as_bytes())),
        };
    } else if meta.is_file() && !attached.contains(&meta.ino()) {
        // A mounted filesystem writes its journal at any time.
        line += &format!(" blocks {} time {}", meta.blocks(), meta.mtime_nsec());
    }
    let is_dir = meta.is_dir();
    if is_dir {
        // A directory does not shrink, so its length does not matter.
        line = format!("mode {:o} owner {}", meta.mode(), meta.uid());
    }
    state.insert(path.display().to_string(), line);
    if is_dir {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            walk(&entry.path(), device, attached, state);
        }
    }
}

/// What differs, a line each.
pub(crate) fn differences(before: &State, after: &State) -> Vec<String> {
    let gone = before.iter().filter(|(k, v)| after.get(*k) != Some(v));
    let new = after.iter().filter(|(k, v)| before.get(*k) != Some(v));
    gone.map(|(k, v)| format!("- {k}: {v}"))
        .chain(new.map(|(k, v)| format!("+ {k}: {v}")))
        .collect()
}

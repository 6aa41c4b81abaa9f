//! The columns, and ways to write a value, that `hostloop status` and `kubectl hostloop` share.

use std::path::Path;

use hostloop_report::status::{LoopReport, MountReport, PoolReport};

use crate::humanize::bytes;
use crate::page::Cell;
use crate::table::{long, numbers, prose, words};

/// The columns of a pool.
pub fn pool<Row: AsRef<PoolReport>>() -> [Cell<Row>; 11] {
    [
        (words("NAME"), |row, _| row.as_ref().name.clone()),
        (words("KIND"), |row, _| row.as_ref().kind.to_string()),
        (words("STATE"), |row, _| pool_state(row.as_ref())),
        (words("FS"), |row, _| or_dash(row.as_ref().fs.clone())),
        (words("REFLINKS"), |row, _| {
            or_dash(row.as_ref().reflinks.map(yes_no))
        }),
        (numbers("SIZE"), |row, _| size(row.as_ref().size_bytes)),
        (numbers("AVAILABLE"), |row, _| size(available(row.as_ref()))),
        (numbers("PROMISED"), |row, _| {
            size(row.as_ref().promised_bytes)
        }),
        (numbers("VOLUMES"), |row, _| {
            row.as_ref().volumes.to_string()
        }),
        (numbers("SNAPSHOTS"), |row, _| snapshots(row.as_ref())),
        (prose("PATH", Some(12)), |row, _| {
            row.as_ref().path.display().to_string()
        }),
    ]
}

/// The snapshots of a pool, and behind a plus the deleted ones that keep their images.
fn snapshots(pool: &PoolReport) -> String {
    match pool.deleted_bases {
        Some(bases) if bases > 0 => format!("{}+{bases}", pool.snapshots),
        _ => pool.snapshots.to_string(),
    }
}

/// The columns of a loop device.
pub const LOOP: [Cell<LoopReport>; 7] = [
    (words("DEVICE"), |l, _| l.device.display().to_string()),
    (numbers("SIZE"), |l, _| bytes(l.size_bytes)),
    (numbers("BLOCK"), |l, _| l.block_size.to_string()),
    (words("I/O"), |l, _| io(l.direct_io)),
    (words("MODE"), |l, _| mode(l.read_only)),
    (words("OVER"), |l, _| l.over.to_string()),
    (long("OBJECT", 14), |l, _| l.object.clone()),
];

/// The columns of a mount.
pub const MOUNT: [Cell<MountReport>; 5] = [
    (words("DEVICE"), |m, _| m.device.display().to_string()),
    (words("FS"), |m, _| {
        if m.kind == "device" {
            "(node)".to_owned()
        } else {
            m.fs.clone()
        }
    }),
    (words("MODE"), |m, _| mode(m.read_only)),
    (long("OBJECT", 14), |m, _| m.object.clone()),
    (prose("PATH", Some(30)), |m, _| m.path.display().to_string()),
];

/// The space that may be used. Older programs only report the free space.
fn available(pool: &PoolReport) -> Option<u64> {
    pool.available_bytes.or(pool.free_bytes)
}

/// A pool's state, with the driver's process if it is visible.
fn pool_state(pool: &PoolReport) -> String {
    let pid = pool.pid.map(|pid| format!(",pid-{pid}"));
    let fault = pool
        .fault
        .as_ref()
        .map(|fault| format!(",fault-{}", fault.name));
    let marks = [pid, fault].into_iter().flatten();
    marks.fold(pool.state.to_string(), |words, mark| words + &mark)
}

/// The names of loop devices without their folder.
pub fn loops<P: AsRef<Path>>(devices: &[P]) -> String {
    let names = devices
        .iter()
        .map(|device| device.as_ref().display().to_string());
    let names: Vec<String> = names
        .map(|name| name.trim_start_matches("/dev/").to_owned())
        .collect();
    or_dash(Some(names.join(",")))
}

/// How a loop device reads and writes its file.
pub fn io(direct: bool) -> String {
    if direct { "direct" } else { "buffered" }.to_owned()
}

fn mode(read_only: bool) -> String {
    if read_only { "ro" } else { "rw" }.to_owned()
}

/// The answer to a question.
pub fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

pub fn or_dash(text: Option<String>) -> String {
    text.filter(|t| !t.is_empty())
        .unwrap_or_else(|| "-".to_owned())
}

/// A size for people, or a dash.
pub fn size(n: Option<u64>) -> String {
    or_dash(n.map(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_snapshots_that_keep_their_images_are_behind_a_plus() {
        for (deleted_bases, expected) in [(None, "3"), (Some(0), "3"), (Some(2), "3+2")] {
            let pool = PoolReport {
                snapshots: 3,
                deleted_bases,
                ..PoolReport::default()
            };
            assert_eq!(snapshots(&pool), expected);
        }
    }
}

//! What pods write to their volumes, in place of data: stamps, numbers of which each is written
//! once. So a stamp says which volume it is of, and when it was written. Its events are for the
//! oracle.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hostloop_driver::record::now_ns;
use hostloop_fake_kernel::Model;
use hostloop_report::pool_files::{IMAGE, VOLUMES};
use parking_lot::Mutex;

use crate::dice::Dice;
use crate::{effects, trace};

#[cfg(test)]
mod tests;

/// The times between two writes of a pod to a volume, in milliseconds. It writes only when its
/// kubelet has something else to do as well.
const PAUSE: (u64, u64) = (30_000, 300_000);
/// Of so many writes in a hundred, the pod syncs the filesystem.
const SYNCS: u64 = 40;
/// What begins kubelet's handles of inline volumes. Their images have names of their own.
const INLINE: &str = "csi-";

/// Something that became of what an image has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StampEvent {
    pub(crate) node: &'static str,
    /// The volume with the image.
    pub(crate) handle: String,
    /// Nanoseconds since 1970, as in the driver's records.
    pub(crate) at: u64,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A pod has read this.
    Read(u64),
    /// A pod has written this.
    Written(u64),
    /// A pod has synced what was written.
    Synced,
    /// Its node has stopped, and this is left.
    Left(u64),
}

/// The kernels of all nodes, and what pods have written in them.
#[derive(Default)]
struct Pods {
    seed: u64,
    kernels: BTreeMap<&'static str, Arc<Model>>,
    /// The number of reads and writes so far. The last write has it as its stamp.
    count: u64,
    events: Vec<StampEvent>,
}

static PODS: Mutex<Pods> = Mutex::new(Pods {
    seed: 0,
    kernels: BTreeMap::new(),
    count: 0,
    events: Vec::new(),
});

/// A node starts, with this kernel.
pub(crate) fn begin(seed: u64, node: &'static str, kernel: Arc<Model>) {
    let mut pods = PODS.lock();
    pods.seed = seed;
    pods.kernels.insert(node, kernel);
}

/// Lets a pod read and write the volume with kubelet's handle, which is at this path. Returns the
/// time until it does so again.
pub(crate) fn write(node: &'static str, handle: &str, target: &Path) -> Duration {
    let pause = PODS.lock().write(node, handle, target);
    // A raw block device may have taken new space.
    effects::changed();
    pause
}

/// Notes what the volumes in the pool of a node have after it has stopped.
pub(crate) fn stopped(node: &'static str, pool: &Path) {
    PODS.lock().stopped(node, pool);
}

/// What has happened since the last call.
pub(crate) fn take() -> Vec<StampEvent> {
    std::mem::take(&mut PODS.lock().events)
}

impl Pods {
    fn note(&mut self, node: &'static str, handle: &str, what: What) {
        self.events.push(StampEvent {
            node,
            handle: handle.to_owned(),
            at: now_ns(),
            what,
        });
    }

    fn write(&mut self, node: &'static str, handle: &str, target: &Path) -> Duration {
        self.count += 1;
        let mut dice = Dice::of(self.seed, "stamps", self.count);
        let (stamp, pause) = (self.count, dice.millis(PAUSE.0, PAUSE.1));
        let Some(kernel) = self.kernels.get(node).cloned() else {
            return pause;
        };
        // Kubelet may not know yet that it is not there any more.
        let Ok((image, found)) = kernel.stamps_at(target) else {
            return pause;
        };
        let entry = image.parent().and_then(Path::file_name);
        let of = entry.unwrap_or_default().to_string_lossy().into_owned();
        if let Some(wrong) = confused(handle, &of) {
            trace::violation(wrong);
        }
        self.note(node, &of, What::Read(found.written));
        if kernel.write_stamp(target, stamp).is_err() {
            return pause;
        }
        self.note(node, &of, What::Written(stamp));
        let is_synced = dice.percent(SYNCS) && kernel.sync_stamp(target).is_ok();
        if is_synced {
            self.note(node, &of, What::Synced);
        }
        let end = if is_synced { ", and syncs it" } else { "" };
        trace::line(node, format!("a pod writes {stamp} to {of}{end}"));
        pause
    }

    fn stopped(&mut self, node: &'static str, pool: &Path) {
        let Some(kernel) = self.kernels.get(node).cloned() else {
            return;
        };
        let volumes = pool.join(VOLUMES);
        let entries = std::fs::read_dir(&volumes).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut handles: Vec<String> = names.collect();
        handles.sort();
        for handle in handles {
            if let Ok(found) = kernel.stamps_of(&volumes.join(&handle).join(IMAGE)) {
                self.note(node, &handle, What::Left(found.written));
            }
        }
    }
}

/// What is wrong if the volume with kubelet's handle has the image of this one.
fn confused(handle: &str, of: &str) -> Option<String> {
    let is_right = handle == of || handle.starts_with(INLINE);
    (!is_right).then(|| format!("a stranger's data: a pod has the image of {of} as {handle}"))
}

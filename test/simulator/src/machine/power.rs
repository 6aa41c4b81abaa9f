//! A node that stops as a whole, and starts again.

use tokio::task::JoinSet;

use crate::dice::Dice;
use crate::door::Doors;
use crate::history::trouble::Damage;
use crate::machine::Machine;
use crate::machine::damaged::{records_in, spoil};
use crate::trace;

/// The file beside a record that the driver never syncs. After a power cut it may be anything.
const UNSYNCED: &str = "state.json";

impl Machine {
    /// Stops the node: driver, kubelet, loop devices and mounts are gone at once. The disk stays,
    /// without what was never synced.
    pub(crate) async fn stop(&mut self) {
        self.kubelet_task = JoinSet::new();
        self.kill().await;
        if self.is_off {
            return;
        }
        self.site.kernel.reboot();
        self.kubelet = self.kubelet.after_reboot();
        self.is_off = true;
        self.stops += 1;
        self.lose_unsynced();
    }

    /// Starts the node, unless it runs.
    pub(crate) fn boot(&mut self, doors: &Doors) {
        if !self.is_off {
            return;
        }
        self.is_off = false;
        self.begin(doors);
        self.kubelet_task
            .spawn(self.kubelet.clone().run(doors.writes()));
    }

    /// Damages or removes some of the files that were never synced.
    fn lose_unsynced(&self) {
        let actor = format!("{} power", self.site.names.node);
        let mut dice = Dice::of(self.site.seed, &actor, self.stops);
        for (handle, record) in records_in(&self.site.pool()) {
            let file = record.with_file_name(UNSYNCED);
            if !file.exists() {
                continue;
            }
            let lost = match dice.below(10) {
                0..4 => continue,
                4 => std::fs::remove_file(&file),
                _ => spoil(&file, *dice.pick(&Damage::ALL)),
            };
            match lost {
                Ok(()) => trace::line("world", format!("{UNSYNCED} of {handle} was not synced")),
                Err(error) => trace::violation(format!("{}: {error}", file.display())),
            }
        }
    }
}

//! A node that stops as a whole, and starts again.

use std::io;

use tokio::task::JoinSet;

use crate::dice::Dice;
use crate::door::Doors;
use crate::history::trouble::{Damage, PoolFile};
use crate::machine::Machine;
use crate::machine::damaged::{records_in, spoil};
use crate::{disk, effects, stamps, trace};

/// The file beside a record that the driver never syncs. After a power cut it may be anything.
const UNSYNCED: &str = PoolFile::State.name();

impl Machine {
    /// Stops the node: driver, kubelet, loop devices and mounts are gone at once. The disk stays,
    /// without what was never synced.
    pub(crate) async fn stop(&mut self) {
        if self.turn_off().await {
            self.stops += 1;
            self.lose_unsynced();
            self.report(disk::settle(self.site.names.node));
        }
    }

    /// Lets the power of the node fail after so many effects of the driver's process, for these
    /// seconds.
    pub(crate) fn lose_power_after(&mut self, effects: u64, rest: u64) {
        (self.rest, self.loses_power) = (rest, true);
        effects::lose_power_after(self.site.names.node, effects);
    }

    /// Stops the node, like [`Machine::stop`]. Its disk has what a real one may have then.
    pub(super) async fn lose_power(&mut self) {
        if !self.turn_off().await {
            return;
        }
        self.power_cuts += 1;
        let node = self.site.names.node;
        let actor = format!("{node} power cut");
        let mut dice = Dice::of(self.site.seed, &actor, self.power_cuts);
        for lost in self.report(disk::cut(node, &mut dice)).unwrap_or_default() {
            trace::line(node, lost);
        }
        self.left = self.site.contents();
    }

    /// True if the node stands still.
    pub(crate) fn is_off(&self) -> bool {
        self.is_off
    }

    /// True if the node has ever stood still.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stops > 0 || self.has_lost_power()
    }

    /// True if the power of the node has ever failed.
    pub(crate) fn has_lost_power(&self) -> bool {
        self.power_cuts > 0
    }

    /// Ends all that runs on the node. False if it stands still already.
    async fn turn_off(&mut self) -> bool {
        self.kubelet_task = JoinSet::new();
        self.kill().await;
        if self.is_off {
            return false;
        }
        self.site.kernel.reboot();
        stamps::stopped(self.site.names.node, &self.site.pool());
        self.kubelet = self.kubelet.after_reboot();
        self.is_off = true;
        true
    }

    /// Reports that the simulator can't change a disk.
    pub(super) fn report<T>(&self, done: io::Result<T>) -> Option<T> {
        let node = self.site.names.node;
        done.inspect_err(|error| trace::violation(format!("the disk of {node}: {error}")))
            .ok()
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

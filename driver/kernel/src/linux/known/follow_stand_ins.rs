//! What a change of the files that stand in for images means for the known loop devices.

use super::Loops;
use crate::{FileId, LoopKey};

impl Loops {
    /// Other files stand in for images than at the last look. Devices that counted as over these
    /// files must be queried again; `None` for too many of them.
    pub(super) fn follow_stand_ins(&mut self, changes: u64, former: Option<Vec<FileId>>) {
        if self.stand_ins == changes {
            return;
        }
        self.stand_ins = changes;
        let Some(former) = former.filter(|_| self.complete) else {
            self.forget();
            return;
        };
        // A query that is under way may bring an answer of before.
        for change in self.changed.values_mut() {
            self.messages += 1;
            change.message = self.messages;
        }
        for file in former {
            let over: Vec<u64> = self.known.numbers_with(LoopKey::Backing(file)).collect();
            let minors = over.into_iter().filter_map(|n| u32::try_from(n).ok());
            minors.for_each(|minor| self.change(minor));
        }
    }
}

//! Randomness by key: what one actor draws at one step depends on nothing else. So a history with
//! steps left out draws the same for the rest.

use std::time::Duration;

/// Spreads the bits of a number over all of its bits.
pub(crate) const fn mix(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// The draws of one actor at one step.
pub(crate) struct Dice(u64);

impl Dice {
    /// The draws of `actor` at `step` in the history of `seed`.
    pub(crate) fn of(seed: u64, actor: &str, step: u64) -> Dice {
        let bytes = actor
            .bytes()
            .fold(mix(seed ^ 0x51_7c_c1_b7), |state, byte| {
                mix(state ^ u64::from(byte)).wrapping_add(0x9e37_79b9_7f4a_7c15)
            });
        Dice(mix(bytes ^ step.wrapping_mul(0xd6e8_feb8_6659_fd93)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`, which is above 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True in this many of a hundred cases.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// One of these.
    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap_or_default()]
    }

    /// A time between two, in milliseconds.
    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least + 1))
    }
}

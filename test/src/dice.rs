//! Pseudorandom numbers from a seed.

use std::sync::atomic::{AtomicU64, Ordering};

/// A generator with the same sequence for the same seed.
pub struct Dice(AtomicU64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Dice {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(AtomicU64::new(seed))
    }

    /// The next number below a limit.
    pub fn below(&self, limit: u64) -> u64 {
        // SplitMix64.
        let state = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}

//! Draws that are the same in each run with the same seed.

/// A series of draws.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    seed: u64,
    number: u64,
}

impl Draws {
    pub(crate) fn new(seed: u64) -> Draws {
        Draws { seed, number: 0 }
    }

    /// The next number.
    pub(crate) fn bits(&mut self) -> u64 {
        // SplitMix64.
        self.number += 1;
        let step = self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.seed.wrapping_add(step);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// True for this share of the draws, between 0 and 1.
    pub(crate) fn takes(&mut self, share: f64) -> bool {
        // 53 bits, all that a fraction has.
        #[expect(clippy::cast_precision_loss, reason = "it has 53 bits")]
        let draw = (self.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        draw < share
    }

    /// A number below this one, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let limit = limit.max(1) as u64;
        usize::try_from(self.bits() % limit).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_draws_takes() {
        for (share, expected) in [(0.0, 0..=0), (0.25, 2300..=2700), (1.0, 10_000..=10_000)] {
            let mut draws = Draws::new(7);
            let taken = (0..10_000).filter(|_| draws.takes(share)).count();
            assert!(expected.contains(&taken), "{share}: {taken}");
        }
    }

    #[test]
    fn a_seed_repeats_its_draws() {
        fn first(seed: u64) -> [u64; 3] {
            let mut draws = Draws::new(seed);
            [draws.bits(), draws.bits(), draws.bits()]
        }
        assert_eq!(first(7), first(7));
        assert_ne!(first(7), first(8));
    }
}

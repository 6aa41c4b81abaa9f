//! A random order that a seed decides.

/// Numbers of a seed, by SplitMix64: the same on each machine and with each version of a library.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }
}

/// Brings things into the order of this seed.
pub(crate) fn shuffle<T>(things: &mut [T], seed: u64) {
    let mut numbers = Numbers(seed);
    for last in (1..things.len()).rev() {
        let below = last as u64 + 1;
        let other = usize::try_from(numbers.next() % below).unwrap_or_default();
        things.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shuffled(seed: u64) -> Vec<u8> {
        let mut things: Vec<u8> = (0..100).collect();
        shuffle(&mut things, seed);
        things
    }

    #[test]
    fn a_seed_is_an_order_of_all() {
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        let mut again = shuffled(1);
        again.sort_unstable();
        assert_eq!(again, (0..100).collect::<Vec<u8>>());
    }
}

//! The order in which cuts are checked.

/// The numbers from 0 up to `count`, in the order that a seed draws.
pub(super) fn order(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = seed;
    for last in (1..count).rev() {
        let drawn = next(&mut state) % (last as u64 + 1);
        order.swap(last, drawn as usize);
    }
    order
}

/// The next number of splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut number = *state;
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the algorithm's publication.
    #[test]
    fn numbers_of_splitmix64() {
        let mut state = 1_234_567;
        let drawn = [next(&mut state), next(&mut state)];
        assert_eq!(
            drawn,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
    }

    #[test]
    fn a_seed_draws_one_order() {
        for count in [0, 1, 2, 100] {
            for seed in [0, 1, u64::MAX] {
                let drawn = order(count, seed);
                assert_eq!(drawn, order(count, seed));
                let mut all = drawn;
                all.sort_unstable();
                assert_eq!(all, (0..count).collect::<Vec<_>>());
            }
        }
        assert_ne!(order(100, 1), order(100, 2));
        assert_ne!(order(100, 1), (0..100).collect::<Vec<_>>());
    }
}

//! Fuzzes everything that reads data from outside the process.
//!
//! Each target runs for `HOSTLOOP_FUZZ_SECONDS` (default 10) on random input and prints how many
//! inputs it took. `docs/changing.md` says how to run them for longer.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

mod entropy;
mod parsers;
mod records;
mod requests;
mod world;

/// Maximum length of an input in bytes.
const MAX_LEN: usize = 4096;

/// Run time of a target on random input. `cargo bolero` has its own limit.
fn budget() -> Duration {
    let seconds = std::env::var("HOSTLOOP_FUZZ_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("HOSTLOOP_FUZZ_SECONDS is a number"));
    Duration::from_secs(seconds.unwrap_or(10))
}

/// Runs one target, and prints the number of inputs when dropped.
struct Target<F> {
    name: &'static str,
    taken: AtomicU64,
    // The engine catches a panic, then looks for a smaller input that also panics.
    check: AssertUnwindSafe<F>,
}

impl<F: Fn(&[u8])> Target<F> {
    fn new(name: &'static str, check: F) -> Target<F> {
        Target {
            name,
            taken: AtomicU64::new(0),
            check: AssertUnwindSafe(check),
        }
    }

    fn take(&self, bytes: &[u8]) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        (self.check)(bytes);
    }
}

impl<F> Drop for Target<F> {
    fn drop(&mut self) {
        let taken = self.taken.load(Ordering::Relaxed);
        println!("fuzz {}: {taken} inputs", self.name);
    }
}

/// Defines a fuzz target: a test that hands arbitrary bytes to a function.
macro_rules! target {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[test]
        fn $name() {
            let target = $crate::Target::new(stringify!($name), $check);
            bolero::check!()
                .with_test_time($crate::budget())
                .with_max_len($crate::MAX_LEN)
                .for_each(|bytes: &[u8]| target.take(bytes));
        }
    };
}
pub(crate) use target;

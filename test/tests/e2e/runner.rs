//! Runs the tests. The standard harness cannot share a cluster, run some tests alone, or check for
//! leaks after the last test.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::world::World;

/// One test.
#[derive(Clone, Copy)]
pub(crate) struct Test {
    /// `module::function`.
    pub(crate) name: &'static str,
    /// Panics if a check fails.
    pub(crate) run: fn(&World),
}

/// Tests that share a deployment.
pub(crate) struct Phase {
    prefix: &'static str,
    tests: &'static [Test],
    together: bool,
    prepare: fn(&World),
}

impl Phase {
    /// Tests that affect only their own objects.
    pub(crate) fn beside_each_other(prefix: &'static str, tests: &'static [Test]) -> Phase {
        Phase {
            prefix,
            tests,
            together: true,
            prepare: |_| (),
        }
    }

    /// Tests that take away shared parts.
    pub(crate) fn in_sequence(prefix: &'static str, tests: &'static [Test]) -> Phase {
        Phase {
            together: false,
            ..Phase::beside_each_other(prefix, tests)
        }
    }

    /// Sets a step that runs before the first test of the phase.
    pub(crate) fn prepared(self, prepare: fn(&World)) -> Phase {
        Phase { prepare, ..self }
    }

    fn at_once(&self) -> usize {
        let wanted = std::env::var("E2E_AT_ONCE").map(|n| n.parse().expect("a number"));
        if self.together {
            wanted.unwrap_or(4)
        } else {
            1
        }
    }

    fn chosen(&self, words: &[String]) -> Vec<(String, Test)> {
        let name = |test: &Test| format!("{}{}", self.prefix, test.name);
        let named = self.tests.iter().map(|test| (name(test), *test));
        let is_chosen =
            |name: &str| words.is_empty() || words.iter().any(|w| name.contains(w.as_str()));
        named.filter(|(name, _)| is_chosen(name)).collect()
    }
}

/// Result counts, shared by threads.
#[derive(Default)]
struct Tally {
    passed: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl Tally {
    /// Runs a function that may panic. The panic's message is already on standard error.
    fn count<T>(&self, name: &str, run: impl FnOnce() -> T) -> Option<T> {
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(run));
        let seconds = started.elapsed().as_secs_f64();
        println!("test {name} ... {} ({seconds:.1} s)", word(outcome.is_ok()));
        if outcome.is_ok() {
            self.passed.fetch_add(1, Ordering::Relaxed);
        } else {
            let mut failed = self.failed.lock();
            failed.push(name.to_owned());
        }
        outcome.ok()
    }
}

/// Runs the phases, but only the tests with one of the words in their names. Ends the
/// process with an error if a test fails.
pub(crate) fn run(phases: &[Phase]) {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    // `--nocapture` and similar flags are for the standard harness.
    words.retain(|word| !word.starts_with("--"));
    let started = Instant::now();
    let tally = Tally::default();
    if phases.iter().all(|phase| phase.chosen(&words).is_empty()) {
        println!("no test has one of {words:?} in its name");
        std::process::exit(1);
    }
    let world = tally.count("deployed", World::up);
    if let Some(world) = world {
        for phase in phases {
            run_phase(phase, &words, &world, &tally);
        }
        tally.count("nothing_is_left", || world.down());
    }
    let failed = tally.failed.into_inner();
    for name in &failed {
        println!("failed: {name}");
    }
    // The summary line has the standard harness's format, for scripts that count tests.
    println!(
        "test result: {}. {} passed; {} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2}s",
        word(failed.is_empty()),
        tally.passed.into_inner(),
        failed.len(),
        started.elapsed().as_secs_f64()
    );
    std::process::exit(i32::from(!failed.is_empty()));
}

fn word(passed: bool) -> &'static str {
    if passed { "ok" } else { "FAILED" }
}

fn run_phase(phase: &Phase, words: &[String], world: &World, tally: &Tally) {
    let tests = phase.chosen(words);
    if tests.is_empty() {
        return;
    }
    (phase.prepare)(world);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((name, test)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            tally.count(name, || (test.run)(world));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..phase.at_once() {
            scope.spawn(work);
        }
    });
    tally.count(&format!("{}clean", phase.prefix), || world.assert_clean());
}

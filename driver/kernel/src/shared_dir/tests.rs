use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;

fn fails() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EDQUOT))
}

#[test]
fn callers_share_a_run_that_starts_after_their_call() {
    const CALLERS: usize = 8;
    let shared = SharedRun::default();
    let runs = AtomicUsize::new(0);
    let (started, has_started) = channel();
    let (end, ended) = channel();
    std::thread::scope(|scope| {
        let shared = &shared;
        let first = scope.spawn(move || {
            shared.run(|| {
                started.send(()).unwrap();
                ended.recv().unwrap();
                Ok(())
            })
        });
        has_started.recv().unwrap();
        let run = || {
            shared.run(|| {
                runs.fetch_add(1, Ordering::SeqCst);
                fails()
            })
        };
        let others: Vec<_> = (0..CALLERS).map(|_| scope.spawn(run)).collect();
        // Each waiting caller holds the next round.
        while Arc::strong_count(&shared.state.lock().next) <= CALLERS {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(runs.load(Ordering::SeqCst), 0, "one run at a time");
        end.send(()).unwrap();
        first.join().unwrap().unwrap();
        for other in others {
            let error = other.join().unwrap().unwrap_err();
            assert_eq!(
                error.raw_os_error(),
                Some(libc::EDQUOT),
                "all get the error"
            );
        }
    });
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn a_call_after_a_run_runs_again() {
    let shared = SharedRun::default();
    shared.run(fails).unwrap_err();
    shared.run(|| Ok(())).unwrap();
    shared.run(fails).unwrap_err();
}

//! How fast the steps follow each other.

use std::io::IsTerminal;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::styles::{QUIET, write};

/// In a recording, each step is long enough for some reports.
const RECORDED: Duration = Duration::from_secs(2);

/// What the next step waits for.
#[derive(Debug)]
pub(crate) enum Pace {
    /// The person presses Enter.
    Enter(mpsc::Receiver<()>),
    /// This time.
    After(Duration),
}

/// Whether steps wait for Enter, or for how long.
fn decide(pause: Option<f64>, shown: bool, recorded: bool) -> Option<Duration> {
    match (pause, shown, recorded) {
        (Some(seconds), ..) => Some(Duration::from_secs_f64(seconds)),
        (None, true, _) => None,
        (None, false, true) => Some(RECORDED),
        (None, false, false) => Some(Duration::ZERO),
    }
}

impl Pace {
    /// Steps wait for Enter if a person looks at a page and has a keyboard here.
    pub(crate) fn new(pause: Option<f64>, page: bool, recorded: bool) -> Pace {
        match decide(pause, page && std::io::stdin().is_terminal(), recorded) {
            Some(time) => Pace::After(time),
            None => Pace::Enter(presses()),
        }
    }

    pub(crate) async fn wait(&mut self) {
        match self {
            Pace::After(time) => tokio::time::sleep(*time).await,
            Pace::Enter(presses) => {
                // Enter was pressed before it was asked for.
                while presses.try_recv().is_ok() {}
                write(format_args!("    {QUIET}Enter goes on{QUIET:#} "));
                // At the end of the input, nothing waits any more.
                if presses.recv().await.is_none() {
                    say!();
                    *self = Pace::After(Duration::ZERO);
                }
            }
        }
    }
}

/// A message for each line of the input. A thread reads them, because the runtime would wait for a
/// task that reads.
fn presses() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if line.is_err() || sender.blocking_send(()).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_with_a_page_sets_the_pace_unless_it_is_given() {
        let seconds = |s| Some(Duration::from_secs(s));
        for (pause, shown, recorded, expected) in [
            (None, false, false, seconds(0)),
            (None, false, true, seconds(2)),
            (None, true, false, None),
            (None, true, true, None),
            (Some(5.0), true, false, seconds(5)),
            (Some(0.0), false, true, seconds(0)),
        ] {
            assert_eq!(
                decide(pause, shown, recorded),
                expected,
                "{pause:?} {shown} {recorded}"
            );
        }
    }
}

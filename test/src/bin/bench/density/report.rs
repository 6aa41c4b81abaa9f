//! The figures of many attached volumes: data, a table, charts, and aims.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::by_hand::Step;
use crate::measure::{Aim, Figure, median, ratios};
use crate::page::{Report, chart, head, row};

/// Aims apply from this number of attached volumes, or to the largest number measured.
const MANY: usize = 1_000;
/// Maximum ratio of a call's time to its time with one volume.
const FLAT: f64 = 1.25;
/// Limit of NodeGetVolumeStats in milliseconds.
const STATS: f64 = 0.3;

/// A timed call of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Call {
    Create,
    /// The first staging of a volume.
    Stage,
    Publish,
    Stats,
    Unpublish,
    /// Unstage and stage of a formatted volume.
    Restage,
    Unstage,
    Delete,
}

impl Call {
    const ALL: [Call; 8] = [
        Call::Create,
        Call::Stage,
        Call::Publish,
        Call::Stats,
        Call::Unpublish,
        Call::Restage,
        Call::Unstage,
        Call::Delete,
    ];

    fn name(self) -> &'static str {
        match self {
            Call::Create => "create",
            Call::Stage => "first stage",
            Call::Publish => "publish",
            Call::Stats => "stats",
            Call::Unpublish => "unpublish",
            Call::Restage => "unstage and stage",
            Call::Unstage => "unstage",
            Call::Delete => "delete",
        }
    }

    /// The kernel's share: system calls that every driver needs.
    fn kernel(self) -> &'static [Step] {
        match self {
            Call::Create | Call::Stats | Call::Delete => &[],
            Call::Stage => &[Step::Configure, Step::Mount],
            Call::Publish => &[Step::Bind],
            Call::Unpublish => &[Step::Unbind],
            Call::Restage => &[Step::Unmount, Step::Clear, Step::Configure, Step::Mount],
            Call::Unstage => &[Step::Unmount, Step::Clear],
        }
    }
}

/// All measurements in their order. Each pass has each number of volumes once.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Density {
    pub(super) numbers: Vec<Beside>,
}

/// Rounds of one further volume's life beside a number of attached volumes, in one pass. Times in
/// milliseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Beside {
    pub(super) volumes: usize,
    pub(super) calls: BTreeMap<Call, Vec<f64>>,
    /// Each round alternated with the round of `calls` at the same index.
    pub(super) kernel: BTreeMap<Step, Vec<f64>>,
    /// CPU time withheld by the machine's host, in percent of the time that processes wanted.
    pub(super) withheld: f64,
}

impl Beside {
    pub(super) fn new(volumes: usize) -> Beside {
        let (calls, kernel) = Default::default();
        Beside {
            volumes,
            calls,
            kernel,
            withheld: 0.0,
        }
    }

    /// The median of a call's rounds.
    fn call(&self, call: Call) -> f64 {
        median(&self.calls[&call])
    }

    fn step(&self, step: Step) -> f64 {
        median(&self.kernel[&step])
    }

    /// The kernel's share of a call.
    fn share(&self, call: Call) -> f64 {
        call.kernel().iter().map(|step| self.step(*step)).sum()
    }
}

impl Density {
    /// The numbers of volumes, each once.
    fn counts(&self) -> Vec<usize> {
        let counts: BTreeSet<_> = self.numbers.iter().map(|n| n.volumes).collect();
        counts.into_iter().collect()
    }

    /// A value of each pass beside this number of volumes.
    fn by_pass(&self, count: usize, of: impl Fn(&Beside) -> f64) -> Vec<f64> {
        self.numbers
            .iter()
            .filter(|n| n.volumes == count)
            .map(of)
            .collect()
    }

    /// For each number of volumes, the median of its passes.
    fn medians(&self, of: impl Fn(&Beside) -> f64) -> Vec<f64> {
        self.counts()
            .into_iter()
            .map(|count| median(&self.by_pass(count, &of)))
            .collect()
    }

    /// Milliseconds that the kernel's share of a call takes more than beside the fewest volumes.
    fn grown(&self, count: usize, call: Call) -> f64 {
        let share = |count| median(&self.by_pass(count, |n| n.share(call)));
        let fewest = self.counts().first().copied().unwrap_or(count);
        (share(count) - share(fewest)).max(0.0)
    }

    /// The passes of a call without the growth of the kernel's share.
    fn driver(&self, count: usize, call: Call) -> Vec<f64> {
        let grown = self.grown(count, call);
        self.by_pass(count, |n| n.call(call) - grown)
    }

    /// For each number of volumes, the median ratio of its passes to those beside the fewest.
    fn against(&self, by_pass: impl Fn(usize) -> Vec<f64>) -> Vec<f64> {
        let all: Vec<_> = self.counts().into_iter().map(by_pass).collect();
        all.iter()
            .map(|of_count| median(&ratios(of_count, &all[0])))
            .collect()
    }
}

impl Report for Density {
    const NAME: &'static str = "density";

    fn table(&self) -> String {
        let counts = self.counts();
        let Some(fewest) = counts.first() else {
            return String::new();
        };
        let passes = self.numbers.len() / counts.len();
        let mut text = format!("Medians of {passes} passes, times in milliseconds.\n\n");
        text += &head("attached volumes", &counts);
        let line = |what: &str, values: Vec<f64>| row(what, values.into_iter().map(Some));
        for call in Call::ALL {
            let name = call.name();
            text += &line(name, self.medians(|n| n.call(call)));
            let against = self.against(|count| self.by_pass(count, |n| n.call(call)));
            text += &line(&format!("{name}: against {fewest}"), against);
            if !call.kernel().is_empty() {
                let share = self.medians(|n| n.share(call));
                text += &line(&format!("{name}: the kernel's share"), share);
                let driver = self.against(|count| self.driver(count, call));
                let what = format!("{name}: against {fewest}, without the kernel's growth");
                text += &line(&what, driver);
            }
        }
        for step in Step::ALL {
            let what = format!("kernel: {}", step.name());
            text += &line(&what, self.medians(|n| n.step(step)));
        }
        text + &line("CPU withheld by the host, %", self.medians(|n| n.withheld))
    }

    fn charts(&self) -> String {
        let counts = self.counts();
        let driver = |call: Call| (call.name(), self.against(|count| self.driver(count, call)));
        let restage = [
            ("the driver", self.medians(|n| n.call(Call::Restage))),
            (
                "the kernel's share",
                self.medians(|n| n.share(Call::Restage)),
            ),
        ];
        let chart = |title, lines: &[_]| chart(title, "attached volumes", &counts, lines);
        let times = "Time of a call against that beside the fewest, without the kernel's growth";
        let milliseconds = "Unstage and stage, milliseconds";
        chart(times, &Call::ALL.map(driver)) + &chart(milliseconds, &restage)
    }

    /// The figures with many volumes.
    fn figures(&self) -> Vec<Figure> {
        let counts = self.counts();
        let (Some(&fewest), Some(&most)) = (counts.first(), counts.last()) else {
            return Vec::new();
        };
        let many = counts.into_iter().filter(|count| *count >= MANY.min(most));
        many.flat_map(|many| self.aims(fewest, many)).collect()
    }
}

impl Density {
    /// The figures beside this number of volumes, against those beside the fewest.
    fn aims(&self, fewest: usize, many: usize) -> Vec<Figure> {
        // With one number of volumes, the figure would be its own floor.
        let flat = if fewest == many {
            Aim::None
        } else {
            Aim::RatioAtMost(FLAT)
        };
        let figure = |call: Call| {
            let what = format!("{many} volumes: {}, against {fewest}", call.name());
            let (driver, floor) = (
                self.driver(many, call),
                self.by_pass(fewest, |n| n.call(call)),
            );
            Figure::beside(what, driver, floor, "ms", flat)
        };
        let mut figures = Vec::from(Call::ALL.map(figure));
        let what = format!("{many} volumes: stats");
        let stats = self.by_pass(many, |n| n.call(Call::Stats));
        figures.push(Figure::alone(what, stats, "ms", Aim::LessThan(STATS)));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Verdict;
    use crate::page::tests::require_drawn;

    #[test]
    fn the_page_shows_the_data_in_the_tree() {
        require_drawn::<Density>();
    }

    /// One pass beside this number of volumes.
    fn beside(volumes: usize, call: f64, step: f64) -> Beside {
        let calls = Call::ALL.map(|c| (c, vec![call])).into();
        let kernel = Step::ALL.map(|s| (s, vec![step])).into();
        Beside {
            calls,
            kernel,
            ..Beside::new(volumes)
        }
    }

    #[test]
    fn a_call_may_become_slower_by_what_the_kernel_does() {
        use Call::{Publish, Restage, Stats, Unstage};
        use Verdict::{Met, Missed};
        type Case<'a> = (&'a str, Call, (f64, f64), (f64, f64), Verdict);
        // Columns: times of (call, kernel's step) beside one volume, then beside a thousand.
        let cases: [Case; 8] = [
            ("as fast", Publish, (4.0, 1.0), (4.0, 1.0), Met),
            ("a little slower", Publish, (4.0, 1.0), (5.0, 1.0), Met),
            ("slower", Publish, (4.0, 1.0), (5.1, 1.0), Missed),
            (
                "slower, as one step is",
                Publish,
                (4.0, 1.0),
                (7.0, 3.0),
                Met,
            ),
            (
                "slower, as two steps are",
                Unstage,
                (4.0, 1.0),
                (8.0, 3.0),
                Met,
            ),
            ("slower, as four are", Restage, (8.0, 1.0), (16.0, 3.0), Met),
            (
                "no step of this call",
                Stats,
                (4.0, 1.0),
                (7.0, 3.0),
                Missed,
            ),
            // Noise of the floor does not count.
            (
                "the kernel became faster",
                Publish,
                (4.0, 3.0),
                (5.0, 1.0),
                Met,
            ),
        ];
        for (name, call, (few, few_step), (many, many_step), verdict) in cases {
            let pass = [
                beside(1, few, few_step),
                beside(1_000, many, many_step),
                beside(2_000, 100.0, 1.0),
            ];
            let numbers = vec![pass; 3].concat();
            let figures = Density { numbers }.figures();
            let (of_1000, of_2000) = figures.split_at(Call::ALL.len() + 1);
            let at = Call::ALL
                .iter()
                .position(|c| *c == call)
                .expect("it is there");
            assert_eq!(of_1000[at].verdict(), verdict, "{name}");
            assert_eq!(
                of_1000[at].what,
                format!("1000 volumes: {}, against 1", call.name())
            );
            assert_eq!(of_2000[at].verdict(), Missed, "{name}");
            assert_eq!(
                of_2000[at].what,
                format!("2000 volumes: {}, against 1", call.name())
            );
        }
    }

    #[test]
    fn a_pass_is_compared_with_its_own_fewest_volumes() {
        // The machine becomes slower from pass to pass.
        let passes = [1.0, 2.0, 4.0, 8.0];
        let pass = |slower: f64| [beside(1_000, 1.2 * slower, 0.0), beside(1, slower, 0.0)];
        let numbers: Vec<_> = passes.into_iter().flat_map(pass).collect();
        let figures = Density { numbers }.figures();
        assert_eq!(figures[0].verdict(), Verdict::Met, "{}", figures[0]);
    }

    #[test]
    fn the_aims_are_about_the_most_volumes_if_there_are_few() {
        for (counts, about) in [
            (&[20][..], &[20][..]),
            (&[1, 20], &[20]),
            (&[1, 300, 999], &[999]),
            (&[1, 500, 1_000, 2_000], &[1_000, 2_000]),
        ] {
            let numbers = counts
                .iter()
                .map(|count| beside(*count, 4.0, 1.0))
                .collect();
            let stats = Density { numbers }
                .figures()
                .into_iter()
                .map(|figure| figure.what);
            let stats: Vec<_> = stats.filter(|what| what.ends_with(": stats")).collect();
            let expected: Vec<_> = about
                .iter()
                .map(|c| format!("{c} volumes: stats"))
                .collect();
            assert_eq!(stats, expected, "{counts:?}");
        }
    }
}

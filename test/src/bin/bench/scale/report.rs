//! The figures of many nodes: data, a table, charts, and aims.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::attachments::Attached;
use super::floor::Floors;
use super::round::{Rest, Round};
use crate::measure::{Aim, Figure, median};
use crate::page::{self, chart, head, row};
use hostloop_test::fleet::Binding;

/// An instance takes less memory than this, in MiB.
const MOST_MEMORY: f64 = 25.0;
/// With the most instances, a volume or an attachment costs at most so many times as much as with
/// the fewest.
const FLAT: f64 = 1.2;

/// All that was measured, in the order of the runs.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Report {
    /// How many claims of each kind were made for each number of instances.
    pub(super) claims: usize,
    pub(super) numbers: Vec<Instances>,
}

/// One run with so many instances.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Instances {
    pub(super) count: usize,
    /// The floors, measured without instances just before.
    pub(super) floors: Floors,
    /// Seconds from the first instance's start until all were at work.
    pub(super) started_after: f64,
    /// API requests that an instance sent until then.
    pub(super) start_requests: f64,
    pub(super) rest: Rest,
    /// One round of each binding.
    pub(super) rounds: Vec<Round>,
    pub(super) attached: Option<Attached>,
    /// Volumes deleted a second.
    pub(super) deleted: f64,
}

/// A line of the table about rounds. The function's number is that of instances.
type Line = (&'static str, fn(&Round, f64) -> f64);

/// A line about something else.
type Of<T> = (&'static str, fn(&T) -> f64);

/// A line that old data lack.
type Maybe<T> = (&'static str, fn(&T) -> Option<f64>);

/// The lines of each binding.
const LINES: [Line; 12] = [
    ("volumes/s", |round, _| round.pace.rate),
    ("seconds from the last claim to the last bound", |r, _| {
        r.tail
    }),
    ("refused writes (409)", |r, _| r.conflicts as f64),
    ("refused writes of others (409)", |r, _| {
        r.conflicts_of_others.values().sum::<usize>() as f64
    }),
    ("API requests a volume, events aside", |r, _| r.requests),
    ("Kubernetes events written a volume", |r, _| r.events),
    ("watch events a volume, all instances", |r, _| {
        r.traffic.events
    }),
    ("watch KiB a volume, all instances", |r, _| {
        r.traffic.bytes / 1024.0
    }),
    ("watch events a volume, one instance", |r, n| {
        r.traffic.events / n
    }),
    ("CPU ms a volume, all instances", |r, _| r.cpu),
    ("most memory of the leader, MiB", |r, _| {
        r.taken.peak_max_mib
    }),
    ("most memory of another, MiB", |r, _| r.taken.peak_next_mib),
];

impl page::Report for Report {
    const NAME: &'static str = "scale";

    fn table(&self) -> String {
        let counts = self.counts();
        let runs = self.numbers.len() / counts.len().max(1);
        let runs = match runs {
            0 | 1 => String::new(),
            runs => format!(", medians of {runs} runs"),
        };
        let mut text = format!("{} claims of each kind{runs}.\n\n", self.claims);
        text += &head("instances", &counts);
        for binding in Binding::ALL {
            let mode = binding.mode();
            let null = self.medians(|n| Some(n.floors.null(binding).rate));
            let ratio =
                |n: &Instances| Some(round(n, binding)?.pace.rate / n.floors.null(binding).rate);
            let ratio = self.medians(ratio);
            let withheld = self.medians(|n| round(n, binding)?.pace.withheld);
            let null_withheld = self.medians(|n| n.floors.null(binding).withheld);
            let server = self.medians(|n| round(n, binding)?.pace.server_cpu);
            let null_server = self.medians(|n| n.floors.null(binding).server_cpu);
            let beside = [
                ("a null provisioner's volumes/s", null),
                ("… of the null provisioner's", ratio),
                ("CPU withheld by the host, %", withheld),
                ("… with the null provisioner", null_withheld),
                ("CPU ms of the API server a volume", server),
                ("… with the null provisioner", null_server),
            ];
            for (what, of) in LINES {
                let values = self.medians(|n| Some(of(round(n, binding)?, n.count as f64)));
                text += &row(&format!("{mode}: {what}"), values);
                if what == "volumes/s" {
                    let rows = beside.iter().cloned();
                    text.extend(rows.map(|(what, values)| row(&format!("{mode}: {what}"), values)));
                }
            }
        }
        let rest: [Of<Instances>; 8] = [
            ("volumes made by hand/s, without instances", |n| {
                n.floors.by_hand.rate
            }),
            ("at rest: resident MiB of an instance", |n| {
                n.rest.taken.resident_mib
            }),
            ("at rest: MiB, shared pages by their share", |n| {
                n.rest.taken.proportional_mib
            }),
            ("at rest: CPU of an instance, % of one", |n| {
                n.rest.cpu_percent
            }),
            ("at rest: API requests of an instance a minute", |n| {
                n.rest.requests_a_minute
            }),
            ("start: seconds until all are at work", |n| n.started_after),
            ("start: API requests of an instance", |n| n.start_requests),
            ("volumes deleted/s", |n| n.deleted),
        ];
        text.extend(rest.map(|(what, of)| row(what, self.medians(|n| Some(of(n))))));
        if self.numbers.iter().any(|n| n.attached.is_some()) {
            text += &self.attachments();
        }
        text
    }

    fn charts(&self) -> String {
        let of_rounds = |of: fn(&Round, f64) -> f64| {
            Binding::ALL.map(|binding| {
                let value = move |n: &Instances| {
                    round(n, binding).map_or(0.0, |round| of(round, n.count as f64))
                };
                (binding.mode(), self.line(value))
            })
        };
        let mut pace = of_rounds(|r, _| r.pace.rate).to_vec();
        pace.push(("null provisioner", self.line(|n| n.floors.null.rate)));
        let scheduled = self.line(|n| n.floors.null_wait.rate);
        pace.push(("null provisioner after the scheduler", scheduled));
        let peak =
            |of: fn(&Round) -> f64| self.line(move |n| n.rounds.iter().map(of).fold(0.0, f64::max));
        let memory = [
            ("the leader", peak(|r| r.taken.peak_max_mib)),
            ("another", peak(|r| r.taken.peak_next_mib)),
            ("at rest", self.line(|n| n.rest.taken.resident_mib)),
            ("aim: less than this", self.line(|_| MOST_MEMORY)),
        ];
        let counts = self.counts();
        let chart = |title, lines: &[_]| chart(title, "instances", &counts, lines);
        [
            chart("Claims bound a second", &pace),
            chart("API requests a volume", &of_rounds(|r, _| r.requests)),
            chart("Watch events a volume", &of_rounds(|r, _| r.traffic.events)),
            chart("Most memory of an instance, MiB", &memory),
        ]
        .concat()
    }

    /// The figures with the most instances.
    fn figures(&self) -> Vec<Figure> {
        let counts = self.counts();
        let (Some(fewest), Some(most)) = (counts.first(), counts.last()) else {
            return Vec::new();
        };
        // With one number of instances, the figure would be its own floor.
        let flat = if fewest == most {
            Aim::None
        } else {
            Aim::RatioAtMost(FLAT)
        };
        let mut figures = Vec::new();
        for binding in Binding::ALL {
            let what = |what: &str| format!("{most} nodes, {}: {what}", binding.mode());
            let runs = |count: &usize, of: fn(&Round) -> f64| {
                self.runs(*count, |n| round(n, binding).map(of))
            };
            let null = self.runs(*most, |n| Some(n.floors.null(binding).rate));
            let rate = runs(most, |r| r.pace.rate);
            let against = what("bound, against a null provisioner");
            let fast = Aim::RatioAtLeast(0.8);
            figures.push(Figure::beside(against, rate, null, "volumes/s", fast));

            let refused = runs(most, |r| r.conflicts as f64);
            let none = Aim::LessThan(1.0);
            figures.push(Figure::alone(
                what("refused writes (409)"),
                refused,
                "",
                none,
            ));

            let each: [Maybe<Round>; 4] = [
                ("API requests", |r| Some(r.requests)),
                ("watch events", |r| Some(r.traffic.events)),
                ("watch KiB", |r| Some(r.traffic.bytes / 1024.0)),
                ("CPU ms of the API server", |r| r.pace.server_cpu),
            ];
            for (each, of) in each {
                let against = what(&format!("{each}, against {fewest} nodes"));
                let [many, few] = [most, fewest]
                    .map(|count| self.runs(*count, |n| round(n, binding).and_then(of)));
                figures.push(Figure::beside(against, many, few, "a volume", flat));
            }
            let peaks: [Of<Round>; 2] = [
                ("the leader", |r| r.taken.peak_max_mib),
                ("another", |r| r.taken.peak_next_mib),
            ];
            for (who, of) in peaks {
                let memory = what(&format!("most memory of {who}"));
                let small = Aim::LessThan(MOST_MEMORY);
                figures.push(Figure::alone(memory, runs(most, of), "MiB", small));
            }
        }
        let each: [Maybe<Attached>; 4] = [
            ("API requests", |a| Some(a.requests)),
            ("watch events", |a| Some(a.traffic.events)),
            ("watch KiB", |a| Some(a.traffic.bytes / 1024.0)),
            ("CPU ms of the API server", |a| a.server_cpu),
        ];
        for (each, of) in each {
            let what = format!("{most} nodes, attach: {each}, against {fewest} nodes");
            let [many, few] =
                [most, fewest].map(|count| self.runs(*count, |n| n.attached.as_ref().and_then(of)));
            figures.push(Figure::beside(what, many, few, "an attachment", flat));
        }
        figures.retain(|figure| !figure.ours.is_empty());
        figures
    }
}

impl Report {
    fn attachments(&self) -> String {
        let lines: [Of<Attached>; 6] = [
            ("volumes attached/s", |a| a.rate),
            ("volumes detached/s", |a| a.detach_rate),
            ("API requests an attachment", |a| a.requests),
            ("refused writes (409)", |a| a.conflicts as f64),
            ("watch events an attachment, all watchers", |a| {
                a.traffic.events
            }),
            ("CPU ms an attachment, all instances", |a| a.cpu),
        ];
        let line = |(what, of): Of<Attached>| {
            row(
                &format!("attach: {what}"),
                self.medians(|n| n.attached.as_ref().map(of)),
            )
        };
        let server = self.medians(|n| n.attached.as_ref()?.server_cpu);
        let server = row("attach: CPU ms of the API server an attachment", server);
        lines.into_iter().map(line).chain([server]).collect()
    }

    /// The numbers of instances, each once.
    fn counts(&self) -> Vec<usize> {
        let counts: BTreeSet<_> = self.numbers.iter().map(|n| n.count).collect();
        counts.into_iter().collect()
    }

    /// The values of all runs with so many instances.
    fn runs(&self, count: usize, of: impl Fn(&Instances) -> Option<f64>) -> Vec<f64> {
        let runs = self.numbers.iter().filter(|n| n.count == count);
        runs.filter_map(of).collect()
    }

    /// For each number of instances, the median of its runs.
    fn medians(&self, of: impl Fn(&Instances) -> Option<f64>) -> Vec<Option<f64>> {
        let runs = self.counts().into_iter().map(|n| self.runs(n, &of));
        let medians = runs.map(|runs| (!runs.is_empty()).then(|| median(&runs)));
        medians.collect()
    }

    /// The values of a line, one for each number of instances.
    fn line(&self, of: impl Fn(&Instances) -> f64) -> Vec<f64> {
        self.medians(|n| Some(of(n)))
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect()
    }
}

fn round(instances: &Instances, binding: Binding) -> Option<&Round> {
    let mut rounds = instances.rounds.iter();
    rounds.find(|round| round.binding == binding.mode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Verdict;
    use crate::page::Report as _;
    use crate::page::tests::{documented, require_drawn};
    use crate::scale::requests::WatchTraffic;

    #[test]
    fn the_page_shows_the_data_in_the_tree() {
        require_drawn::<Report>();
    }

    #[test]
    fn three_runs_decide_and_their_medians_are_drawn() {
        let (mut once, _) = documented::<Report>();
        let mut counts = BTreeSet::new();
        once.numbers.retain(|n| counts.insert(n.count));
        let verdicts = |report: &Report| report.figures().iter().map(Figure::verdict).collect();
        let few: Vec<Verdict> = verdicts(&once);
        assert_eq!(few, vec![Verdict::FewRuns(1); few.len()]);
        let thrice = Report {
            numbers: [&*once.numbers; 3].concat(),
            ..once.clone()
        };
        let [drawn, table] = [&thrice, &once].map(page::Report::table);
        let (head, drawn) = drawn.split_once('\n').expect("it has lines");
        assert_eq!(
            head,
            format!("{} claims of each kind, medians of 3 runs.", once.claims)
        );
        assert!(table.ends_with(drawn));
        let enough: Vec<Verdict> = verdicts(&thrice);
        assert!(enough.iter().all(|v| !v.undecided()), "{enough:?}");
    }

    #[test]
    fn an_attachment_may_not_cost_more_with_more_nodes() {
        let (mut report, _) = documented::<Report>();
        report.numbers.retain(|n| [1, 100].contains(&n.count));
        for (more, verdict) in [
            (0.0, Verdict::Met),
            (0.1, Verdict::Met),
            (0.3, Verdict::Missed),
        ] {
            for instances in &mut report.numbers {
                let attached = instances.attached.as_mut().expect("volumes were attached");
                let grown = if instances.count == 100 {
                    1.0 + more
                } else {
                    1.0
                };
                let traffic = WatchTraffic {
                    events: 19.0 * grown,
                    bytes: 20e3 * grown,
                };
                (attached.requests, attached.traffic) = (3.0 * grown, traffic);
                attached.server_cpu = Some(5.0 * grown);
            }
            let thrice = Report {
                numbers: [&*report.numbers; 3].concat(),
                ..report.clone()
            };
            let figures = thrice.figures();
            let attach = figures
                .iter()
                .filter(|figure| figure.what.contains("attach: "));
            let verdicts: Vec<_> = attach.map(Figure::verdict).collect();
            assert_eq!(verdicts, [verdict; 4], "{more}");
        }
        report.numbers.iter_mut().for_each(|n| n.attached = None);
        assert!(
            report
                .figures()
                .iter()
                .all(|figure| !figure.what.contains("attach"))
        );
    }
}

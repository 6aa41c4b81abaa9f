//! The figures of many nodes: data, a table, charts, and aims.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::attachments::Attached;
use super::floor::Floors;
use super::round::{Rest, Round};
use crate::measure::{Aim, Figure};
use hostloop_test::fleet::Binding;

/// Of an instance, in MiB: it is to have less.
const MOST_MEMORY: f64 = 25.0;

/// Where the data of the figures are, in the documentation.
const DATA: &str = "figures/scale.json";

/// What stands around the table in the documentation.
const BEGIN: &str = "<!-- scripts/bench scale writes from here -->";
const END: &str = "<!-- to here -->";

/// All that was measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Report {
    /// Of each kind, for each number of instances.
    pub(super) claims: usize,
    pub(super) numbers: Vec<Instances>,
}

/// With so many instances.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Instances {
    pub(super) count: usize,
    /// Measured just before, without any.
    pub(super) floors: Floors,
    /// Seconds from the first one's start until all were at work.
    pub(super) started_after: f64,
    /// API requests of one until then.
    pub(super) start_requests: f64,
    pub(super) rest: Rest,
    /// One of each binding.
    pub(super) rounds: Vec<Round>,
    pub(super) attached: Option<Attached>,
    /// Volumes deleted a second.
    pub(super) deleted: f64,
}

/// A line of the table: what it tells, and how to read it off a round.
type Line = (&'static str, fn(&Round, f64) -> f64);

/// A line that tells something else.
type Of<T> = (&'static str, fn(&T) -> f64);

/// Of each round; the number is that of instances.
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
    ("watch events a volume, all instances", |r, _| r.told.events),
    ("watch KiB a volume, all instances", |r, _| {
        r.told.bytes / 1024.0
    }),
    ("watch events a volume, one instance", |r, n| {
        r.told.events / n
    }),
    ("CPU ms a volume, all instances", |r, _| r.cpu),
    ("most memory of the leader, MiB", |r, _| {
        r.taken.peak_max_mib
    }),
    ("most memory of another, MiB", |r, _| r.taken.peak_next_mib),
];

impl Report {
    /// For a person: a table in Markdown.
    pub(super) fn table(&self) -> String {
        let mut text = format!("{} claims of each kind.\n\n", self.claims);
        let counts = self.numbers.iter().map(|n| format!(" {} |", n.count));
        text += &format!("| instances |{}\n|---|", counts.collect::<String>());
        text += &"--:|".repeat(self.numbers.len());
        text.push('\n');
        for binding in Binding::ALL {
            let mode = binding.mode();
            let null = self.row(|n| Some(n.floors.null(binding).rate));
            let ratio =
                |n: &Instances| Some(round(n, binding)?.pace.rate / n.floors.null(binding).rate);
            let ratio = self.row(ratio);
            let withheld = self.row(|n| round(n, binding)?.pace.withheld);
            let null_withheld = self.row(|n| n.floors.null(binding).withheld);
            for (what, of) in LINES {
                let row = self.row(|n| Some(of(round(n, binding)?, n.count as f64)));
                text += &format!("| {mode}: {what} |{row}\n");
                if what == "volumes/s" {
                    text += &format!("| {mode}: a null provisioner's volumes/s |{null}\n");
                    text += &format!("| {mode}: … of the null provisioner's |{ratio}\n");
                    text += &format!("| {mode}: CPU withheld by the host, % |{withheld}\n");
                    text += &format!("| {mode}: … with the null provisioner |{null_withheld}\n");
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
        for (what, of) in rest {
            text += &format!("| {what} |{}\n", self.row(|n| Some(of(n))));
        }
        if self.numbers.iter().any(|n| n.attached.is_some()) {
            text += &self.attachments();
        }
        text
    }

    fn attachments(&self) -> String {
        let lines: [Of<Attached>; 6] = [
            ("volumes attached/s", |a| a.rate),
            ("volumes detached/s", |a| a.detach_rate),
            ("API requests an attachment", |a| a.requests),
            ("refused writes (409)", |a| a.conflicts as f64),
            ("watch events an attachment, all watchers", |a| {
                a.told.events
            }),
            ("CPU ms an attachment, all instances", |a| a.cpu),
        ];
        let line = |(what, of): Of<Attached>| {
            let row = self.row(|n| n.attached.as_ref().map(of));
            format!("| attach: {what} |{row}\n")
        };
        lines.into_iter().map(line).collect()
    }

    fn row(&self, of: impl Fn(&Instances) -> Option<f64>) -> String {
        let cell =
            |n| of(n).map_or_else(|| " |".to_owned(), |value| format!(" {} |", number(value)));
        self.numbers.iter().map(cell).collect()
    }

    /// What an earlier run has written into `figures` beneath this directory.
    pub(super) fn read(docs: &Path) -> Report {
        let file = docs.join(DATA);
        let text = std::fs::read_to_string(&file);
        let text = text.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
    }

    /// Writes the data into `figures` beneath this directory, and the table and charts into
    /// `scale.md`, which is made if there is none.
    pub(super) fn write(&self, docs: &Path) {
        let figures = docs.join("figures");
        let keep = |file: &Path, text: &str| {
            std::fs::write(file, text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        };
        std::fs::create_dir_all(&figures).unwrap_or_else(|e| panic!("{}: {e}", figures.display()));
        let data = serde_json::to_string_pretty(self).expect("figures are plain data");
        keep(&docs.join(DATA), &(data + "\n"));
        let page = docs.join("scale.md");
        let text = match std::fs::read_to_string(&page) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => format!("{BEGIN}\n{END}\n"),
            Err(e) => panic!("{}: {e}", page.display()),
        };
        let text = with_table(&text, &(self.table() + &self.charts()))
            .unwrap_or_else(|| panic!("{} has no {BEGIN} and {END}", page.display()));
        std::fs::write(&page, text).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    }

    /// Charts in Mermaid, which draws no legend: the text below each one names its lines.
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
        let counts: Vec<_> = self.numbers.iter().map(|n| n.count.to_string()).collect();
        let counts = counts.join(", ");
        let chart = |title: &str, lines: &[(&str, String)]| {
            let drawn = lines
                .iter()
                .map(|(_, values)| format!("    line [{values}]\n"));
            let drawn: String = drawn.collect();
            let names: Vec<_> = lines.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            format!(
                "\n```mermaid\nxychart-beta\n    title \"{title}\"\n    x-axis \"instances\" [{counts}]\n\
                 {drawn}```\n\nLines, in the order of their colours: {names}.\n"
            )
        };
        [
            chart("Claims bound a second", &pace),
            chart("API requests a volume", &of_rounds(|r, _| r.requests)),
            chart("Watch events a volume", &of_rounds(|r, _| r.told.events)),
            chart("Most memory of an instance, MiB", &memory),
        ]
        .concat()
    }

    /// The values of a line, one for each number of instances.
    fn line(&self, of: impl Fn(&Instances) -> f64) -> String {
        let values = self.numbers.iter().map(|n| format!("{:.2}", of(n)));
        values.collect::<Vec<_>>().join(", ")
    }

    /// What is aimed at, with the most instances.
    pub(super) fn figures(&self, judged: bool) -> Vec<Figure> {
        let (Some(fewest), Some(most)) = (self.numbers.first(), self.numbers.last()) else {
            return Vec::new();
        };
        // One storm of each kind: its figures decide nothing.
        let aim = |_: Aim| if judged { Aim::Undecided } else { Aim::None };
        let figure = |what: String, ours, floor, unit, aim| Figure {
            what,
            ours,
            floor,
            unit,
            aim,
        };
        let count = most.count;
        let mut figures = Vec::new();
        for binding in Binding::ALL {
            let (Some(few), Some(many)) = (round(fewest, binding), round(most, binding)) else {
                continue;
            };
            let what = |what: &str| format!("{count} nodes, {}: {what}", binding.mode());
            let null = Some(most.floors.null(binding).rate);
            let against = what("bound, against a null provisioner");
            let rate = aim(Aim::RatioAtLeast(0.8));
            figures.push(figure(against, many.pace.rate, null, "volumes/s", rate));
            let none = aim(Aim::LessThan(1.0));
            let refused = many.conflicts as f64;
            figures.push(figure(
                what("refused writes (409)"),
                refused,
                None,
                "",
                none,
            ));
            let flat = aim(Aim::RatioAtMost(1.2));
            let fewer = format!("API requests, against {} nodes", fewest.count);
            let asked = Some(few.requests);
            figures.push(figure(what(&fewer), many.requests, asked, "a volume", flat));
            let fewer = format!("watch events, against {} nodes", fewest.count);
            let (told, floor) = (many.told.events, Some(few.told.events));
            figures.push(figure(what(&fewer), told, floor, "a volume", flat));
            for (who, peak) in [
                ("the leader", many.taken.peak_max_mib),
                ("another", many.taken.peak_next_mib),
            ] {
                let small = aim(Aim::LessThan(MOST_MEMORY));
                let most = what(&format!("most memory of {who}"));
                figures.push(figure(most, peak, None, "MiB", small));
            }
        }
        figures
    }
}

fn round(instances: &Instances, binding: Binding) -> Option<&Round> {
    let mut rounds = instances.rounds.iter();
    rounds.find(|round| round.binding == binding.mode())
}

fn number(value: f64) -> String {
    match value {
        v if v == v.round() && v < 1e9 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A page with another table between its marks.
fn with_table(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_the_place_of_the_last() {
        let page = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let new = with_table(&page, "| new |").expect("it has its marks");
        assert_eq!(new, format!("a\n{BEGIN}\n\n| new |\n{END}\nb\n"));
        assert!(with_table("nothing", "").is_none());
    }

    #[test]
    fn numbers_are_short() {
        for (value, shown) in [
            (3.0, "3"),
            (0.123, "0.12"),
            (12.34, "12.3"),
            (1234.5, "1234"),
        ] {
            assert_eq!(number(value), shown);
        }
    }
}

//! What a person reads while the demo runs, or a program with `--json`.
//!
//! In text, everything is printed the moment it is known. In JSON, every step is one object on one
//! line, printed when the step ends: see [`StepLog`] for its fields.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::status::paint::{Paint, Tone, terminal_width, wrap};
use crate::status::table::without_middle;
use crate::status::units::{count, took};

use super::picture::Change;
use super::tree::brief;

/// The widest a line of text gets, in columns.
const WIDEST: usize = 110;
/// What stands before everything that belongs to a step.
const INDENT: &str = "       ";

/// One step as JSON. The names are stable.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct StepLog {
    /// Its number, from 1.
    pub(super) step: usize,
    /// How many there are.
    pub(super) of: usize,
    /// What it shows.
    pub(super) title: String,
    /// Calls made, in order.
    pub(super) calls: Vec<CallLog>,
    /// What changed on the disk and in the kernel.
    pub(super) changes: Vec<Change>,
    /// Figures and findings, as name and text.
    pub(super) facts: Vec<Fact>,
    /// What was checked.
    pub(super) checks: Vec<Check>,
    /// How long it took, looking and telling included.
    pub(super) milliseconds: f64,
    /// Why it ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// A call.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CallLog {
    /// Its name in CSI.
    pub(super) rpc: String,
    /// What it was about.
    pub(super) about: String,
    /// The gRPC code by name, such as `Ok`.
    pub(super) code: String,
    /// How long it took.
    pub(super) milliseconds: f64,
}

/// A figure or finding.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fact {
    /// What it is.
    pub(super) name: String,
    /// What is to be said.
    pub(super) text: String,
}

/// Something that was checked.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// What should be.
    pub(super) what: String,
    /// Whether it is.
    pub(super) ok: bool,
}

/// How it all went, as JSON on the last line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    /// Steps that ran.
    pub(super) steps: usize,
    /// Calls made.
    pub(super) calls: usize,
    /// Things checked.
    pub(super) checks: usize,
    /// Checks that failed.
    pub(super) failed: usize,
    /// The story was cut short.
    pub(super) cut_short: bool,
    /// How long it took.
    pub(super) milliseconds: f64,
}

/// Tells the story.
pub(super) struct Narrator {
    out: Box<dyn Write>,
    json: bool,
    paint: Paint,
    width: usize,
    pace: Duration,
    began: Instant,
    step_began: Instant,
    step: Option<StepLog>,
    summary: Summary,
}

impl Narrator {
    /// On standard output, with a pause of `pace` after every step of text.
    pub(super) fn new(json: bool, pace: Duration) -> Narrator {
        Narrator {
            out: Box::new(io::stdout()),
            json,
            paint: if json {
                Paint::plain()
            } else {
                Paint::for_stdout()
            },
            width: terminal_width().unwrap_or(WIDEST).clamp(60, WIDEST),
            pace,
            began: Instant::now(),
            step_began: Instant::now(),
            step: None,
            summary: Summary::default(),
        }
    }

    /// A paragraph that belongs to no step.
    pub(super) fn say(&mut self, text: &str) {
        for line in wrap(text, self.width) {
            self.line(&line);
        }
    }

    /// A line that belongs to no step, as it is.
    pub(super) fn plain(&mut self, text: &str) {
        self.line(text);
    }

    /// A heading that belongs to no step.
    pub(super) fn heading(&mut self, text: &str) {
        let text = self.paint.text(Tone::Title, text);
        self.line(&text);
    }

    /// A step begins.
    pub(super) fn begin(&mut self, step: usize, of: usize, title: &str, why: &str) {
        self.step_began = Instant::now();
        self.step = Some(StepLog {
            step,
            of,
            title: title.to_owned(),
            ..StepLog::default()
        });
        self.line("");
        let number = self.paint.text(Tone::Quiet, &format!("{step:>2}/{of}"));
        let title = self.paint.text(Tone::Title, title);
        self.line(&format!("{number}  {title}"));
        for line in wrap(why, self.width - INDENT.len()) {
            let line = self.paint.text(Tone::Quiet, &line);
            self.line(&format!("{INDENT}{line}"));
        }
    }

    /// A call was answered.
    pub(super) fn call(&mut self, rpc: &str, about: &str, code: tonic::Code, time: Duration) {
        self.summary.calls += 1;
        if let Some(step) = &mut self.step {
            step.calls.push(CallLog {
                rpc: rpc.to_owned(),
                about: about.to_owned(),
                code: format!("{code:?}"),
                milliseconds: milliseconds(time),
            });
        }
        let answer = match code {
            tonic::Code::Ok => String::new(),
            code => format!(" = {code:?}"),
        };
        let time = took(time);
        let room = self.width.saturating_sub(INDENT.len() + 2 + time.len() + 1);
        let text = without_middle(&brief(&format!("{rpc} {about}{answer}")), room);
        let pad = " ".repeat(room - text.chars().count());
        let painted = match text.strip_prefix(rpc) {
            Some(rest) => format!("{}{rest}", self.paint.text(Tone::Call, rpc)),
            None => text,
        };
        let arrow = self.paint.text(Tone::Call, "→");
        let time = self.paint.text(Tone::Quiet, &time);
        self.line(&format!("{INDENT}{arrow} {painted}{pad} {time}"));
    }

    /// What changed since the step before.
    pub(super) fn changes(&mut self, changes: Vec<Change>) {
        for change in &changes {
            let (tone, sign) = match (&change.before, &change.now) {
                (None, _) => (Tone::Good, "+"),
                (_, None) => (Tone::Gone, "-"),
                _ => (Tone::Changed, "~"),
            };
            let sort = format!("{:<6}", change.sort.as_str());
            let sign = self.paint.text(tone, sign);
            let sort = self.paint.text(Tone::Quiet, &sort);
            let text = brief(&format!("{}  {}", change.name, change.said()));
            self.line(&format!("{INDENT}{sign} {sort} {}", text.trim_end()));
        }
        if let Some(step) = &mut self.step {
            step.changes.extend(changes);
        }
    }

    /// A figure or finding.
    pub(super) fn fact(&mut self, name: &str, text: impl Into<String>) {
        let text = text.into();
        let label = self.paint.text(Tone::Quiet, &format!("{name:<6}"));
        self.line(&format!("{INDENT}· {label} {}", brief(&text)));
        if let Some(step) = &mut self.step {
            let name = name.to_owned();
            step.facts.push(Fact { name, text });
        }
    }

    /// Something was checked.
    pub(super) fn check(&mut self, what: impl Into<String>, ok: bool) {
        let what = what.into();
        self.summary.checks += 1;
        self.summary.failed += usize::from(!ok);
        let (tone, sign) = match ok {
            true => (Tone::Good, "✓"),
            false => (Tone::Bad, "✗"),
        };
        let sign = self.paint.text(tone, sign);
        let text = match ok {
            true => what.clone(),
            false => self.paint.text(Tone::Bad, &format!("NOT SO: {what}")),
        };
        self.line(&format!("{INDENT}{sign} {text}"));
        if let Some(step) = &mut self.step {
            step.checks.push(Check { what, ok });
        }
    }

    /// The step is over.
    pub(super) fn end(&mut self, error: Option<&str>) {
        let Some(mut step) = self.step.take() else {
            return;
        };
        let time = self.step_began.elapsed();
        step.milliseconds = milliseconds(time);
        step.error = error.map(str::to_owned);
        self.summary.steps += 1;
        if let Some(error) = error {
            self.summary.cut_short = true;
            let text = self.paint.text(Tone::Bad, &format!("✗ {error}"));
            self.line(&format!("{INDENT}{text}"));
        }
        if self.json {
            self.object(&step);
        } else {
            let rule = format!("took {}", took(time));
            let time = self.paint.text(Tone::Quiet, &rule);
            self.line(&format!("{INDENT}  {time}"));
            std::thread::sleep(self.pace);
        }
    }

    /// How it went so far.
    pub(super) fn summary(&self) -> Summary {
        Summary {
            milliseconds: milliseconds(self.began.elapsed()),
            ..self.summary
        }
    }

    /// The last lines.
    pub(super) fn finish(&mut self) {
        let s = self.summary();
        if self.json {
            self.object(&s);
            return;
        }
        let text = format!(
            "{}, {}, {} in {}",
            count(s.steps, "step"),
            count(s.calls, "call"),
            count(s.checks, "check"),
            took(Duration::from_secs_f64(s.milliseconds / 1e3))
        );
        let (tone, held) = match (s.cut_short, s.failed) {
            (false, 0) => (Tone::Good, "Everything held.".to_owned()),
            (false, n) => (Tone::Bad, format!("{} failed.", count(n, "check"))),
            (true, 0) => (Tone::Bad, "Not everything could be shown.".to_owned()),
            (true, n) => {
                let failed = count(n, "check");
                (
                    Tone::Bad,
                    format!("Not everything could be shown, and {failed} failed."),
                )
            }
        };
        let held = self.paint.text(tone, &held);
        self.line("");
        self.line(&format!("{held} {text}."));
    }

    /// Whether everything could be shown, and every check held.
    pub(super) fn all_held(&self) -> bool {
        !self.summary.cut_short && self.summary.failed == 0
    }

    /// The story ends before its end.
    pub(super) fn cut_short(&mut self) {
        self.summary.cut_short = true;
    }

    fn object(&mut self, value: &impl Serialize) {
        // Plain structs with string keys: there is nothing in them JSON can't say.
        let line = serde_json::to_string(value).unwrap_or_default();
        self.write(&line);
    }

    fn line(&mut self, text: &str) {
        if !self.json {
            self.write(text);
        }
    }

    /// Who reads may have gone (`| head`); the demo goes on and cleans up all the same.
    fn write(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
        let _ = self.out.flush();
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

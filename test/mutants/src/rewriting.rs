//! Writes mutants into the text of a file.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::edit::{Edit, Piece, is_active};

/// The text of a file with its mutants.
#[derive(Debug, Default)]
pub(crate) struct Rewriting {
    pub(crate) text: String,
    /// The bytes of the new text that belong to a mutant. Where expressions are in each other, so are
    /// these.
    pub(crate) regions: Vec<(u32, Range<usize>)>,
}

impl Rewriting {
    /// Makes the edits of these mutants.
    pub(crate) fn of(source: &str, edits: impl IntoIterator<Item = (u32, Edit)>) -> Rewriting {
        let mut writer = Writer {
            source,
            inserts: BTreeMap::new(),
            choices: BTreeMap::new(),
            done: Rewriting::default(),
        };
        for (number, edit) in edits {
            match edit {
                Edit::Insert { at, text } => {
                    writer.inserts.entry(at).or_default().push((number, text));
                }
                Edit::Choice { whole, other } => {
                    let place = (whole.start, Reverse(whole.end));
                    writer
                        .choices
                        .entry(place)
                        .or_default()
                        .push((number, other));
                }
            }
        }
        writer.part(0..source.len(), None);
        writer.done
    }
}

/// What may stand in the place of an expression, for each of its mutants.
type Others = Vec<(u32, Vec<Piece>)>;

struct Writer<'a> {
    source: &'a str,
    inserts: BTreeMap<usize, Vec<(u32, String)>>,
    /// By start and end, so that an expression comes before those in it.
    choices: BTreeMap<(usize, Reverse<usize>), Others>,
    done: Rewriting,
}

impl Writer<'_> {
    /// Writes a part of the file. `around` is the expression that is being written and has it.
    fn part(&mut self, part: Range<usize>, around: Option<&Range<usize>>) {
        let within: Vec<(Range<usize>, Others)> = self
            .choices
            .range((part.start, Reverse(usize::MAX))..)
            .take_while(|((start, _), _)| *start < part.end)
            .map(|((start, Reverse(end)), others)| (*start..*end, others.clone()))
            .filter(|(whole, _)| whole.end <= part.end && Some(whole) != around)
            .collect();
        let mut at = part.start;
        for (whole, others) in within {
            // It may be in the one before, which has written it.
            if whole.start >= at {
                self.plain(at..whole.start, &part);
                self.choice(&whole, &others);
                at = whole.end;
            }
        }
        self.plain(at..part.end, &part);
    }

    /// Writes text without expressions to choose, and what is inserted there. What is inserted at an
    /// end of the part belongs to the code around it.
    fn plain(&mut self, text: Range<usize>, part: &Range<usize>) {
        let mut at = text.start;
        for (place, inserts) in self.inserts.range(text.start..=text.end) {
            if *place == part.start || *place == part.end {
                continue;
            }
            self.done.text.push_str(&self.source[at..*place]);
            at = *place;
            for (number, insert) in inserts {
                let start = self.done.text.len();
                self.done.text.push_str(insert);
                self.done
                    .regions
                    .push((*number, start..self.done.text.len()));
            }
        }
        self.done.text.push_str(&self.source[at..text.end]);
    }

    /// Writes an expression, and what may stand in its place.
    fn choice(&mut self, whole: &Range<usize>, others: &Others) {
        let start = self.done.text.len();
        self.done.text.push('(');
        for (number, other) in others {
            let start = self.done.text.len();
            self.done
                .text
                .push_str(&format!("if {} {{ ", is_active(*number)));
            for piece in other {
                match piece {
                    Piece::Text(text) => self.done.text.push_str(text),
                    Piece::Source(part) => self.part(part.clone(), Some(whole)),
                }
            }
            self.done.text.push_str(" } else ");
            self.done
                .regions
                .push((*number, start..self.done.text.len()));
        }
        self.done.text.push_str("{ ");
        self.part(whole.clone(), Some(whole));
        self.done.text.push_str(" })");
        for (number, _) in others {
            self.done
                .regions
                .push((*number, start..self.done.text.len()));
        }
    }
}

#[cfg(test)]
mod tests;

//! Finds the mutants that the compiler refuses.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::plan::Region;

/// A line of `cargo build --message-format json`.
#[derive(Deserialize)]
struct Line {
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    level: String,
    message: String,
    spans: Vec<Span>,
}

#[derive(Clone, Deserialize)]
struct Span {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
    expansion: Option<Box<Expansion>>,
}

#[derive(Clone, Deserialize)]
struct Expansion {
    span: Span,
}

/// What the compiler's errors come from.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Blame {
    pub(crate) numbers: BTreeSet<u32>,
    /// Errors in files without mutants.
    pub(crate) others: Vec<String>,
}

impl Blame {
    /// Reads the output of a build.
    pub(crate) fn of(output: &str, regions: &[Region]) -> Blame {
        let mut blame = Blame::default();
        for line in output.lines() {
            let Ok(Line {
                message: Some(message),
            }) = serde_json::from_str(line)
            else {
                continue;
            };
            // The last error of a crate only counts the others, and has no place.
            if !message.level.starts_with("error") || message.spans.is_empty() {
                continue;
            }
            let numbers = culprits(&message.spans, regions);
            if numbers.is_empty() {
                let Span { file_name, .. } = &message.spans[0];
                blame
                    .others
                    .push(format!("{file_name}: {}", message.message));
            }
            blame.numbers.extend(numbers);
        }
        blame
    }
}

/// The mutants of the smallest region around the error, or else those of the nearest.
fn culprits(spans: &[Span], regions: &[Region]) -> BTreeSet<u32> {
    let mut places = Vec::new();
    for is_primary in [true, false] {
        for span in spans.iter().filter(|span| span.is_primary == is_primary) {
            let mut span = Some(span);
            while let Some(place) = span {
                places.push(place);
                span = place.expansion.as_ref().map(|expansion| &expansion.span);
            }
        }
    }
    for place in &places {
        let around = regions.iter().filter(|region| {
            region.file == place.file_name
                && region.bytes.start <= place.byte_start
                && place.byte_end <= region.bytes.end
        });
        let numbers = least(around, |region| region.bytes.len());
        if !numbers.is_empty() {
            return numbers;
        }
    }
    for place in &places {
        let in_file = regions
            .iter()
            .filter(|region| region.file == place.file_name);
        let numbers = least(in_file, |region| {
            let after = region.bytes.start.saturating_sub(place.byte_end);
            after.max(place.byte_start.saturating_sub(region.bytes.end))
        });
        if !numbers.is_empty() {
            return numbers;
        }
    }
    BTreeSet::new()
}

/// The mutants of those regions for which a number is least.
fn least<'a>(
    regions: impl Iterator<Item = &'a Region>,
    number: impl Fn(&Region) -> usize,
) -> BTreeSet<u32> {
    let regions: Vec<&Region> = regions.collect();
    let least = regions.iter().map(|region| number(region)).min();
    let least_ones = regions
        .into_iter()
        .filter(|region| Some(number(region)) == least);
    least_ones.map(|region| region.number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(file: &str, start: usize, end: usize) -> String {
        serde_json::json!({"reason": "compiler-message", "message": {
            "level": "error", "message": "mismatched types", "spans": [{
                "file_name": file, "byte_start": start, "byte_end": end, "is_primary": true,
                "expansion": null,
            }],
        }})
        .to_string()
    }

    #[test]
    fn an_error_belongs_to_the_smallest_region_around_it() {
        let regions: Vec<Region> = [(1, 10..90), (2, 20..40), (3, 20..40), (4, 200..210)]
            .map(|(number, bytes)| Region {
                number,
                file: "a.rs".to_owned(),
                bytes,
            })
            .into();
        for (start, end, expected) in [
            (50, 60, vec![1]),
            (20, 40, vec![2, 3]),
            (30, 50, vec![1]),
            // Beside all of them: the nearest.
            (150, 160, vec![4]),
            (100, 110, vec![1]),
        ] {
            let blame = Blame::of(&error("a.rs", start, end), &regions);
            let numbers: Vec<u32> = blame.numbers.into_iter().collect();
            assert_eq!(numbers, expected, "{start}..{end}");
        }
    }

    #[test]
    fn other_messages_blame_no_mutant() {
        let regions = [Region {
            number: 1,
            file: "a.rs".to_owned(),
            bytes: 0..9,
        }];
        let output = [
            "not JSON".to_owned(),
            r#"{"reason":"build-finished","success":false}"#.to_owned(),
            error("a.rs", 1, 2).replace("\"error\"", "\"warning\""),
            r#"{"message":{"level":"error","message":"aborting","spans":[]}}"#.to_owned(),
            error("b.rs", 1, 2),
        ];
        let blame = Blame::of(&output.join("\n"), &regions);
        assert_eq!(blame.numbers, BTreeSet::new());
        assert_eq!(blame.others, ["b.rs: mismatched types"]);
    }
}

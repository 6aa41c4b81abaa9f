//! Durations on the command line, in the form Go programs take them: `15s`, `1m30s`, `500ms`.

use std::time::Duration;

/// Parses a duration. A bare `0` is valid; other numbers need a unit.
pub fn parse(text: &str) -> Result<Duration, String> {
    read(text).ok_or_else(|| format!("{text:?} is not a duration such as 15s, 1m30s or 500ms"))
}

/// `None` if the text is not a duration.
fn read(text: &str) -> Option<Duration> {
    match text {
        "0" => return Some(Duration::ZERO),
        "" => return None,
        _ => {}
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit_end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        let part = Duration::try_from_secs_f64(number * seconds).ok()?;
        total = total.checked_add(part)?;
        rest = next;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("0", Some(0)),
            ("15s", Some(15_000)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("500ms", Some(500)),
            ("15", None),
            ("", None),
            ("s", None),
            ("-1s", None),
            ("1d", None),
            ("1e300h", None),
            ("99999999999999999999s", None),
            ("10", None),
            ("10s", Some(10_000)),
            ("2h", Some(7_200_000)),
            ("0s", Some(0)),
            ("1s ", None),
        ] {
            let read = parse(text).ok();
            assert_eq!(read, millis.map(Duration::from_millis), "{text:?}");
        }
    }
}

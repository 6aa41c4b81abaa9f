//! Quantities, such as `1500M` or `2Gi`, as the API server stores and compares them.

/// Units and their powers: of 1024 for the first, of 10 for the others.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// Billionths in a unit.
const NANOS: i128 = 1_000_000_000;

/// Returns the value of a quantity in billionths, rounded up. None for another text.
pub fn nanos(text: &str) -> Option<i128> {
    let end = text.rfind(|c: char| c.is_ascii_digit() || c == '.')? + 1;
    // The exponent of `1e3` has digits too.
    let (number, suffix) = match text[..end].find(['e', 'E']) {
        Some(at) => text.split_at(at),
        None => text.split_at(end),
    };
    let scale = match BINARY
        .iter()
        .position(|unit| *unit == suffix && !unit.is_empty())
    {
        Some(power) => Ok(1024_i128.pow(u32::try_from(power).ok()?)),
        None => Err(exponent(suffix)?),
    };
    let (is_negative, digits) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let all: i128 = format!("{whole}{part}").parse().ok()?;
    let places = i32::try_from(part.len()).ok()?;
    let value = match scale {
        Ok(scale) => all
            .checked_mul(scale)?
            .checked_mul(NANOS)
            .map(|v| divided(v, places))?,
        Err(power) => match 9 + power - places {
            up @ 0.. => all.checked_mul(10_i128.checked_pow(up.unsigned_abs())?)?,
            down => divided(all, -down),
        },
    };
    Some(if is_negative { -value } else { value })
}

/// The power of ten of a decimal unit or of an exponent like `e3`.
fn exponent(suffix: &str) -> Option<i32> {
    let unit = DECIMAL
        .iter()
        .find(|(unit, _)| *unit == suffix)
        .map(|(_, power)| *power);
    unit.or_else(|| suffix.strip_prefix(['e', 'E'])?.parse().ok())
}

/// Divides by a power of ten, rounding up.
fn divided(value: i128, places: i32) -> i128 {
    let divisor = 10_i128.pow(places.unsigned_abs().min(30));
    value / divisor + i128::from(value % divisor > 0)
}

/// Returns the quantity as the API server writes it: without fractions, in the largest unit of its
/// kind that loses nothing. None for another text.
pub(super) fn canonical(text: &str) -> Option<String> {
    let nanos = nanos(text)?;
    let is_binary = BINARY[1..].iter().any(|unit| text.ends_with(unit));
    if is_binary && nanos.abs() >= 1024 * NANOS {
        let mut value = divided(nanos, 9);
        let mut power = 0;
        while value % 1024 == 0 && power + 1 < BINARY.len() {
            value /= 1024;
            power += 1;
        }
        return Some(format!("{value}{}", BINARY[power]));
    }
    let is_exponential = text
        .trim_end_matches(|c: char| c.is_ascii_digit())
        .ends_with(['e', 'E'])
        && text.ends_with(|c: char| c.is_ascii_digit());
    let mut value = nanos;
    let mut power = -9;
    while value != 0 && value % 1000 == 0 && power < 18 {
        value /= 1000;
        power += 3;
    }
    if value == 0 {
        return Some("0".to_owned());
    }
    let unit = match (is_exponential, power) {
        (true, 0) => String::new(),
        (true, power) => format!("e{power}"),
        (false, power) => {
            let unit = DECIMAL.iter().find(|(_, of)| *of == power);
            unit.map_or_else(String::new, |(unit, _)| (*unit).to_owned())
        }
    };
    Some(format!("{value}{unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_in_their_largest_unit() {
        for (text, expected) in [
            ("1024Mi", "1Gi"),
            ("1500Mi", "1500Mi"),
            ("0.5Gi", "512Mi"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("1500M", "1500M"),
            ("1000M", "1G"),
            ("1.5G", "1500M"),
            ("0.5", "500m"),
            ("1", "1"),
            ("1000", "1k"),
            ("1073741824", "1073741824"),
            ("2000000000", "2G"),
            ("1e3", "1e3"),
            ("12e6", "12e6"),
            ("0", "0"),
            ("8Ei", "8Ei"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "x", "1 Gi", "1Gb", "1.2.3"] {
            assert_eq!(canonical(text), None, "{text}");
        }
        assert!(nanos("1Gi") > nanos("1G") && nanos("1G") == nanos("1000M"));
    }
}

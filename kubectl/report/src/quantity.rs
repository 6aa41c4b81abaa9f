//! Kubernetes quantities: `20Gi`, `1.5G`, `1e9`.

/// Whole bytes, rounded up; `None` if the text is not a quantity or the value exceeds 64 bits.
pub fn bytes(text: &str) -> Option<i64> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let (multiplier, divisor) = scale(suffix)?;
    let places = u32::try_from(fraction.len()).ok()?;
    let divisor = 10_i128.checked_pow(places)?.checked_mul(divisor)?;
    let scaled = digits.checked_mul(multiplier)?;
    // Rounds up, so negative values are rounded towards zero.
    let rounded = if negative {
        -(scaled / divisor)
    } else {
        scaled.checked_add(divisor - 1)? / divisor
    };
    i64::try_from(rounded).ok()
}

fn binary(power: u32) -> Option<(i128, i128)> {
    Some((1_i128 << (10 * power), 1))
}

fn decimal(power: i32) -> Option<(i128, i128)> {
    let factor = 10_i128.checked_pow(power.unsigned_abs())?;
    Some(if power < 0 { (1, factor) } else { (factor, 1) })
}

/// The multiplier and the divisor of a suffix.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    match suffix {
        "" => decimal(0),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        exponent => {
            let power = exponent.strip_prefix(['e', 'E'])?;
            decimal(power.parse().ok()?)
        }
    }
}

/// Formats a size in its shortest exact binary form.
pub fn written(bytes: i64) -> String {
    let mut number = bytes;
    let mut suffixes = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter();
    let mut suffix = "";
    while number != 0 && number % 1024 == 0 {
        let Some(next) = suffixes.next() else { break };
        number /= 1024;
        suffix = next;
    }
    format!("{number}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1", Some(1)),
            ("1Ki", Some(1024)),
            ("20Gi", Some(20 << 30)),
            ("1.5Gi", Some(3 << 29)),
            ("1.5G", Some(1_500_000_000)),
            ("1e9", Some(1_000_000_000)),
            ("1E3", Some(1000)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("12e-1", Some(2)),
            ("100m", Some(1)),
            ("1001m", Some(2)),
            ("0.1", Some(1)),
            (".5Ki", Some(512)),
            ("5.", Some(5)),
            ("+3", Some(3)),
            ("-1", Some(-1)),
            ("-1500m", Some(-1)),
            ("7Ei", Some(7 << 60)),
            ("8Ei", None),
            ("99999999999999999999999999999999999999999", None),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("Gi", None),
            ("1gi", None),
            ("1 Gi", None),
            ("1e", None),
            ("1e99", None),
        ] {
            assert_eq!(bytes(text), expected, "{text:?}");
        }
    }

    #[test]
    fn writes() {
        for (size, expected) in [
            (0, "0"),
            (1, "1"),
            (1023, "1023"),
            (1000, "1000"),
            (1024, "1Ki"),
            (1025, "1025"),
            (1500 << 20, "1500Mi"),
            (1 << 30, "1Gi"),
            (3 << 29, "1536Mi"),
            (1 << 60, "1Ei"),
            (1_000_000_000, "1000000000"),
            (4 << 60, "4Ei"),
        ] {
            assert_eq!(written(size), expected);
            assert_eq!(bytes(expected), Some(size));
        }
    }
}

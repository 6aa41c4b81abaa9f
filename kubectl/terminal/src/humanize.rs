//! Formats sizes and ages for people.

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Bytes in the largest binary unit with a value of at least one, to three figures: `1.50 GiB`,
/// `12.3 MiB`, `512 MiB`. A round number has no decimals: `4 KiB`.
pub fn bytes(n: u64) -> String {
    let mut power = (63 - n.max(1).leading_zeros() as usize) / 10;
    // 1023.9 KiB would be printed as 1024 KiB.
    if scaled(n, power) >= 999.5 && power + 1 < UNITS.len() {
        power += 1;
    }
    let value = scaled(n, power);
    let decimals = match value {
        v if (v - v.round()).abs() < 0.005 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", UNITS[power])
}

/// Bytes as [`bytes`] has them, and their exact number: `1.50 GiB (1610612736 bytes)`.
pub fn exact_bytes(n: u64) -> String {
    if n < 1000 {
        return format!("{n} bytes");
    }
    format!("{} ({n} bytes)", bytes(n))
}

/// Bytes in the binary unit of this power.
fn scaled(n: u64, power: usize) -> f64 {
    n as f64 / (1u64 << (10 * power)) as f64
}

/// How long ago a point in time was (nanoseconds since the epoch), roughly: `12s`, `5m`, `3h`,
/// `40d`. A time in the future reads `0s`.
pub fn age(then_ns: u64, now_ns: u64) -> String {
    let s = now_ns.saturating_sub(then_ns) / 1_000_000_000;
    match s {
        0..=119 => format!("{s}s"),
        120..=7199 => format!("{}m", s / 60),
        7200..=172_799 => format!("{}h", s / 3600),
        _ => format!("{}d", s / 86_400),
    }
}

/// A number with its noun: "1 volume", "3 volumes".
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_to_three_figures() {
        for (n, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1024, "1 KiB"),
            (4096, "4 KiB"),
            (1536, "1.50 KiB"),
            (1_048_575, "1 MiB"),
            (512 << 20, "512 MiB"),
            (12_900_000, "12.3 MiB"),
            (3 << 30, "3 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(n), text, "{n}");
        }
    }

    #[test]
    fn exact_numbers_of_bytes() {
        assert_eq!(exact_bytes(999), "999 bytes");
        assert_eq!(exact_bytes(3 << 29), "1.50 GiB (1610612736 bytes)");
    }

    #[test]
    fn ages() {
        for (s, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7200, "2h"),
            (3 * 86_400, "3d"),
        ] {
            assert_eq!(age(0, s * 1_000_000_000), text);
        }
        assert_eq!(age(5, 0), "0s");
    }
}

//! Sizes and times as a person reads them.

use std::time::Duration;

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Bytes in the largest binary unit that leaves at least one, to three figures: `1.50 GiB`,
/// `12.3 MiB`, `512 MiB`; a round number without decimals: `4 KiB`.
pub fn bytes(n: u64) -> String {
    let mut power = (63 - n.max(1).leading_zeros() as usize) / 10;
    let scaled = |power: usize| n as f64 / (1u64 << (10 * power)) as f64;
    // 1023.9 KiB would be printed as 1024 KiB.
    if scaled(power) >= 999.5 && power + 1 < UNITS.len() {
        power += 1;
    }
    let value = scaled(power);
    let decimals = match value {
        v if (v - v.round()).abs() < 0.005 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", UNITS[power])
}

/// A signed change in bytes: `+12.3 MiB`, `-4 KiB`.
pub fn change(from: u64, to: u64) -> String {
    let sign = if to < from { '-' } else { '+' };
    format!("{sign}{}", bytes(from.abs_diff(to)))
}

/// How long something took: `0.4 ms`, `12 ms`, `3.21 s`, `2 min 5 s`.
pub fn took(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    match ms {
        ms if ms < 9.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms if ms < 59_995.0 => format!("{:.2} s", ms / 1e3),
        _ => {
            let s = time.as_secs();
            format!("{} min {} s", s / 60, s % 60)
        }
    }
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

/// "1 volume", "3 volumes".
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Runs of hex digits that nobody reads to the end (digests, UUIDs, IDs), cut short: anything
/// over 16 digits, or a UUID with dashes, keeps its first 4 and last 4.
pub fn shorten(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let run = hex_run(rest);
        if run > 16 {
            let digits = &rest[..run];
            out.push_str(&digits[..4]);
            out.push('…');
            out.push_str(&digits[run - 4..]);
            rest = &rest[run..];
        } else {
            let step = run.max(c.len_utf8());
            out.push_str(&rest[..step]);
            rest = &rest[step..];
        }
    }
    out
}

/// Length of the run of hex digits at the start of a text; a UUID's dashes belong to it.
fn hex_run(text: &str) -> usize {
    let bytes = text.as_bytes();
    let uuid = bytes.len() >= 36
        && bytes[..36].iter().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => *b == b'-',
            _ => b.is_ascii_hexdigit(),
        });
    if uuid {
        return 36;
    }
    let end = bytes.iter().position(|b| !b.is_ascii_hexdigit());
    end.unwrap_or(bytes.len())
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
    fn changes_carry_a_sign() {
        assert_eq!(change(0, 4096), "+4 KiB");
        assert_eq!(change(4096, 0), "-4 KiB");
    }

    #[test]
    fn times_and_ages() {
        for (ms, text) in [
            (0.44, "0.4 ms"),
            (12.2, "12 ms"),
            (999.4, "999 ms"),
            (999.9, "1.00 s"),
            (3210.0, "3.21 s"),
            (125_000.0, "2 min 5 s"),
        ] {
            assert_eq!(took(Duration::from_secs_f64(ms / 1e3)), text);
        }
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

    #[test]
    fn long_hex_is_cut_short() {
        for (text, short) in [
            ("", ""),
            ("globalmount", "globalmount"),
            ("0123456789abcdef", "0123456789abcdef"),
            (
                "a/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef/globalmount",
                "a/0123…cdef/globalmount",
            ),
            (
                "pods/8f7f5c1e-0000-4000-8000-0000000000a1/volumes",
                "pods/8f7f…00a1/volumes",
            ),
            (
                "vol-00000000000000aa-0190f5c8a0b07c3d8e9f0123456789ab",
                "vol-00000000000000aa-0190…89ab",
            ),
            ("größe/ü", "größe/ü"),
        ] {
            assert_eq!(shorten(text), short);
        }
    }
}

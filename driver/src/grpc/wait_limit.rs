//! How long a call may wait for earlier calls, by its `grpc-timeout` header.

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// How long a call without a deadline waits.
const WITHOUT_DEADLINE: Duration = Duration::from_secs(60);
/// The longest time kept back to send the answer before the deadline.
const MARGIN: Duration = Duration::from_secs(1);

/// How long a call with these headers waits. The answer must reach the caller before its deadline.
pub(super) fn wait_limit(headers: &MetadataMap) -> Duration {
    let timeout = headers
        .get("grpc-timeout")
        .and_then(|value| timeout(value.to_str().ok()?));
    match timeout {
        Some(timeout) => timeout - MARGIN.min(timeout / 10),
        None => WITHOUT_DEADLINE,
    }
}

/// Parses a `grpc-timeout`: up to eight digits and a unit
/// (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).
fn timeout(value: &str) -> Option<Duration> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(n * 3600),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(None, 60_000)]
    #[case::hours(Some("2H"), 7_199_000)]
    #[case::minutes(Some("2M"), 119_000)]
    #[case::seconds(Some("15S"), 14_000)]
    #[case::milliseconds(Some("1000m"), 900)]
    #[case::microseconds(Some("10000000u"), 9_000)]
    #[case::nanoseconds(Some("99999999n"), 90)]
    #[case::zero(Some("0S"), 0)]
    #[case::no_unit(Some("15"), 60_000)]
    #[case::no_number(Some("S"), 60_000)]
    #[case::signed(Some("+5S"), 60_000)]
    #[case::nine_digits(Some("123456789u"), 60_000)]
    #[case::empty(Some(""), 60_000)]
    #[case::not_ascii(Some("5µ"), 60_000)]
    fn the_time_to_wait(#[case] header: Option<&str>, #[case] millis: u128) {
        let mut headers = MetadataMap::new();
        if let Some(value) = header {
            let value = tonic::metadata::AsciiMetadataValue::try_from(value.as_bytes()).unwrap();
            headers.insert("grpc-timeout", value);
        }
        assert_eq!(wait_limit(&headers).as_millis(), millis);
    }
}

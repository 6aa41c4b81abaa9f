//! The faults that administrators give the pools of a node: `full`, `missing,for=5m`.

use std::fmt;
use std::time::Duration;

use crate::duration;

/// How long a fault lasts without `for`.
const USUAL: Duration = Duration::from_secs(600);
/// The longest time of a fault.
const MAX: Duration = Duration::from_secs(24 * 3600);
/// Calls that wait keep pods from starting and ending.
const USUAL_HANGING: Duration = Duration::from_secs(30);
/// The longest time that calls wait.
const MAX_HANGING: Duration = Duration::from_secs(300);

/// What a fault does to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolFaultKind {
    /// The pool's filesystem has no free room.
    Full,
    /// The pool is treated as one that is not there.
    Missing,
    /// Calls that touch the pool's files wait.
    Hanging,
}

impl PoolFaultKind {
    /// All faults.
    pub const ALL: [PoolFaultKind; 3] = [
        PoolFaultKind::Full,
        PoolFaultKind::Missing,
        PoolFaultKind::Hanging,
    ];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            PoolFaultKind::Full => "full",
            PoolFaultKind::Missing => "missing",
            PoolFaultKind::Hanging => "hanging",
        }
    }

    /// True if nothing can be done with the pool meanwhile.
    pub fn is_total(self) -> bool {
        self != PoolFaultKind::Full
    }

    /// The usual and the longest time.
    fn times(self) -> (Duration, Duration) {
        match self {
            PoolFaultKind::Full | PoolFaultKind::Missing => (USUAL, MAX),
            PoolFaultKind::Hanging => (USUAL_HANGING, MAX_HANGING),
        }
    }
}

/// A fault of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolFault {
    pub kind: PoolFaultKind,
    /// How long it lasts.
    pub lasts: Duration,
}

/// A text that can't be read as a fault of a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFaultError {
    #[error("unknown fault {0:?}; there are {names}", names = names())]
    Unknown(String),
    #[error("unknown field {0:?}; there is for=DURATION")]
    UnknownField(String),
    #[error("for: {value:?} {why}")]
    Time {
        value: String,
        /// What is wrong with the value.
        why: String,
    },
}

fn names() -> String {
    PoolFaultKind::ALL.map(PoolFaultKind::name).join(", ")
}

impl PoolFault {
    /// Reads a fault: its word, and perhaps `for`.
    pub fn parse(text: &str) -> Result<PoolFault, PoolFaultError> {
        let mut words = text.split(',').map(str::trim);
        let word = words.next().unwrap_or_default();
        let kind = PoolFaultKind::ALL
            .into_iter()
            .find(|kind| kind.name() == word)
            .ok_or_else(|| PoolFaultError::Unknown(word.to_owned()))?;
        let (mut lasts, _) = kind.times();
        for word in words {
            let value = word.strip_prefix("for=");
            let value = value.ok_or_else(|| PoolFaultError::UnknownField(word.to_owned()))?;
            lasts = time(kind, value)?;
        }
        Ok(PoolFault { kind, lasts })
    }
}

/// The form that the driver reports. It reads as the same fault.
impl fmt::Display for PoolFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},for={}s", self.kind.name(), self.lasts.as_secs_f64())
    }
}

fn time(kind: PoolFaultKind, value: &str) -> Result<Duration, PoolFaultError> {
    let (_, max) = kind.times();
    let why = match duration::parse(value) {
        Ok(time) if time.is_zero() => "lasts for an instant only".to_owned(),
        Ok(time) if time > max => format!("is longer than {} s", max.as_secs()),
        Ok(time) => return Ok(time),
        Err(_) => "is not a duration such as 30s or 5m".to_owned(),
    };
    Err(PoolFaultError::Time {
        value: value.to_owned(),
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_written() {
        for (text, kind, seconds, written) in [
            ("full", PoolFaultKind::Full, 600, "full,for=600s"),
            (
                "full,for=24h",
                PoolFaultKind::Full,
                86400,
                "full,for=86400s",
            ),
            (
                "missing, for=5m",
                PoolFaultKind::Missing,
                300,
                "missing,for=300s",
            ),
            ("hanging", PoolFaultKind::Hanging, 30, "hanging,for=30s"),
        ] {
            let fault = PoolFault {
                kind,
                lasts: Duration::from_secs(seconds),
            };
            assert_eq!(PoolFault::parse(text), Ok(fault), "{text:?}");
            assert_eq!(fault.to_string(), written);
            assert_eq!(PoolFault::parse(written), Ok(fault));
        }
    }

    #[test]
    fn errors_name_the_field_and_the_reason() {
        for (text, error) in [
            ("", "unknown fault \"\"; there are full, missing, hanging"),
            ("gone", "unknown fault \"gone\""),
            ("full,seed=1", "unknown field \"seed=1\"; there is for"),
            ("full,for=25h", "for: \"25h\" is longer than 86400 s"),
            ("hanging,for=6m", "for: \"6m\" is longer than 300 s"),
            ("hanging,for=0s", "for: \"0s\" lasts for an instant only"),
            ("missing,for=5", "for: \"5\" is not a duration"),
        ] {
            let found = PoolFault::parse(text).unwrap_err().to_string();
            assert!(found.starts_with(error), "{text:?}: {found}");
        }
    }
}

//! The faults that a claim asks for by its annotation: `gone`, `eio-from=1Gi,for=10m,seed=7`. The
//! parameter [`CLASS_PARAMETER`] of a class has the same form, and is for its claims without one.
//!
//! The first word is the fault. `for` limits how long it lasts, and every fault has a maximum. The
//! seed tells a repetition from the fault before it.

use std::fmt;
use std::time::Duration;

use hostloop_report::quantity;

use crate::duration;

/// The parameter of a StorageClass with the fault of its claims.
pub const CLASS_PARAMETER: &str = "fault";
/// The annotation of a claim that is to have no fault, whatever its class says.
pub const NONE: &str = "none";

/// The longest annotation that is read, in bytes.
const MAX_TEXT: usize = 256;
/// Volumes have blocks of this size.
const BLOCK: u64 = 4096;

/// How long a fault lasts without `for`.
const USUAL: Duration = Duration::from_secs(600);
/// The longest time of a fault.
const MAX: Duration = Duration::from_secs(24 * 3600);
/// A frozen filesystem blocks sync(2) of the whole node.
const USUAL_FROZEN: Duration = Duration::from_secs(30);
/// The longest time that a filesystem stays frozen.
const MAX_FROZEN: Duration = Duration::from_secs(300);

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The disk is gone: all I/O fails.
    Gone,
    /// I/O at and behind this offset of the device, in bytes, fails.
    EioFrom(u64),
    /// The filesystem loses what it has not written, and is shut down.
    Powercut,
    /// Writes wait.
    Frozen,
    /// The filesystem meets an error and becomes read-only.
    ReadOnly,
    /// The filesystem has no free room.
    Full,
}

impl FaultKind {
    /// The word of the annotation.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Gone => "gone",
            FaultKind::EioFrom(_) => "eio-from",
            FaultKind::Powercut => "powercut",
            FaultKind::Frozen => "frozen",
            FaultKind::ReadOnly => "readonly",
            FaultKind::Full => "full",
        }
    }

    /// The words of all faults, for completion: what follows a `=` is missing.
    pub const WORDS: [&str; 6] = [
        "gone",
        "eio-from=",
        "powercut",
        "frozen",
        "readonly",
        "full",
    ];

    /// The forms of all faults, for messages.
    fn forms() -> String {
        FaultKind::WORDS.join(", ").replace('=', "=OFFSET")
    }

    /// The usual and the longest time; `None` for a fault that happens at one instant.
    fn times(self) -> Option<(Duration, Duration)> {
        match self {
            FaultKind::Powercut => None,
            FaultKind::Frozen => Some((USUAL_FROZEN, MAX_FROZEN)),
            FaultKind::Gone | FaultKind::EioFrom(_) | FaultKind::ReadOnly | FaultKind::Full => {
                Some((USUAL, MAX))
            }
        }
    }
}

/// A fault that a claim asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClaimFault {
    pub kind: FaultKind,
    /// How long it lasts; `None` for a fault that happens at one instant.
    pub lasts: Option<Duration>,
    /// Another seed is another fault.
    pub seed: u64,
}

/// An annotation that can't be read as a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimFaultError {
    #[error("it has more than {max} bytes", max = MAX_TEXT)]
    TooLong,
    #[error("unknown fault {0:?}; there are {names}", names = FaultKind::forms())]
    Unknown(String),
    #[error("unknown field {0:?}; there are for=DURATION and seed=NUMBER")]
    UnknownField(String),
    #[error("{0}: it is there twice")]
    Twice(&'static str),
    #[error("{field}: {value:?} {why}")]
    Value {
        field: &'static str,
        value: String,
        /// What is wrong with the value.
        why: String,
    },
}

impl ClaimFault {
    /// Reads an annotation.
    pub fn parse(text: &str) -> Result<ClaimFault, ClaimFaultError> {
        if text.len() > MAX_TEXT {
            return Err(ClaimFaultError::TooLong);
        }
        let mut words = text.split(',').map(str::trim);
        let kind = kind(words.next().unwrap_or_default())?;
        let (mut lasts, mut seed) = (None, None);
        for word in words {
            match word.split_once('=') {
                Some(("for", value)) => set(&mut lasts, "for", time(kind, value)?)?,
                Some(("seed", value)) => set(&mut seed, "seed", number(value)?)?,
                _ => return Err(ClaimFaultError::UnknownField(word.to_owned())),
            }
        }
        let usual = kind.times().map(|(usual, _)| usual);
        Ok(ClaimFault {
            kind,
            lasts: lasts.or(usual),
            seed: seed.unwrap_or(0),
        })
    }

    /// True if the message of an event is about this fault. The driver names a fault in its written
    /// form: `The volume has the fault gone,for=600s, which …`.
    pub fn is_named_in(&self, message: &str) -> bool {
        let name = format!("fault {self}");
        message.match_indices(name.as_str()).any(|(at, _)| {
            let rest = &message[at + name.len()..];
            // Another seed is another fault.
            !rest.starts_with(",seed=") && !rest.starts_with(|c: char| c.is_ascii_digit())
        })
    }
}

/// The form that the driver records. It reads as the same fault.
impl fmt::Display for ClaimFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if let FaultKind::EioFrom(offset) = self.kind {
            write!(f, "={offset}")?;
        }
        if let Some(lasts) = self.lasts {
            write!(f, ",for={}s", lasts.as_secs_f64())?;
        }
        if self.seed != 0 {
            write!(f, ",seed={}", self.seed)?;
        }
        Ok(())
    }
}

fn kind(word: &str) -> Result<FaultKind, ClaimFaultError> {
    Ok(match word.split_once('=') {
        Some(("eio-from", value)) => FaultKind::EioFrom(offset(value)?),
        None => match word {
            "gone" => FaultKind::Gone,
            "powercut" => FaultKind::Powercut,
            "frozen" => FaultKind::Frozen,
            "readonly" => FaultKind::ReadOnly,
            "full" => FaultKind::Full,
            _ => return Err(ClaimFaultError::Unknown(word.to_owned())),
        },
        Some(_) => return Err(ClaimFaultError::Unknown(word.to_owned())),
    })
}

fn set<T>(to: &mut Option<T>, field: &'static str, value: T) -> Result<(), ClaimFaultError> {
    match to.replace(value) {
        None => Ok(()),
        Some(_) => Err(ClaimFaultError::Twice(field)),
    }
}

fn wrong(field: &'static str, value: &str, why: impl Into<String>) -> ClaimFaultError {
    ClaimFaultError::Value {
        field,
        value: value.to_owned(),
        why: why.into(),
    }
}

fn offset(value: &str) -> Result<u64, ClaimFaultError> {
    let bytes = quantity::bytes(value).and_then(|bytes| u64::try_from(bytes).ok());
    match bytes {
        Some(bytes) if bytes > 0 && bytes.is_multiple_of(BLOCK) => Ok(bytes),
        Some(_) => Err(wrong(
            "eio-from",
            value,
            format!("is not a positive multiple of {BLOCK}"),
        )),
        None => Err(wrong("eio-from", value, "is not a size such as 512Mi")),
    }
}

fn time(kind: FaultKind, value: &str) -> Result<Duration, ClaimFaultError> {
    let Some((_, max)) = kind.times() else {
        let why = format!("has no meaning: {} happens at one instant", kind.name());
        return Err(wrong("for", value, why));
    };
    match duration::parse(value) {
        Ok(time) if time.is_zero() => Err(wrong("for", value, "lasts for an instant only")),
        Ok(time) if time > max => {
            let why = format!("is longer than {} s", max.as_secs());
            Err(wrong("for", value, why))
        }
        Ok(time) => Ok(time),
        Err(_) => Err(wrong("for", value, "is not a duration such as 30s or 5m")),
    }
}

fn number(value: &str) -> Result<u64, ClaimFaultError> {
    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse().ok().filter(|_| is_plain);
    number.ok_or_else(|| wrong("seed", value, "is not a whole number of up to 64 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: FaultKind, seconds: Option<u64>, seed: u64) -> ClaimFault {
        ClaimFault {
            kind,
            lasts: seconds.map(Duration::from_secs),
            seed,
        }
    }

    #[test]
    fn faults_are_read_and_written() {
        use FaultKind::*;
        for (text, expected, written) in [
            ("gone", fault(Gone, Some(600), 0), "gone,for=600s"),
            (
                "gone,for=24h",
                fault(Gone, Some(86400), 0),
                "gone,for=86400s",
            ),
            (
                "gone, seed=7",
                fault(Gone, Some(600), 7),
                "gone,for=600s,seed=7",
            ),
            (
                "eio-from=1Gi,for=5m",
                fault(EioFrom(1 << 30), Some(300), 0),
                "eio-from=1073741824,for=300s",
            ),
            ("powercut", fault(Powercut, None, 0), "powercut"),
            (
                "powercut,seed=2",
                fault(Powercut, None, 2),
                "powercut,seed=2",
            ),
            ("frozen", fault(Frozen, Some(30), 0), "frozen,for=30s"),
            (
                "frozen,for=5m",
                fault(Frozen, Some(300), 0),
                "frozen,for=300s",
            ),
            ("full", fault(Full, Some(600), 0), "full,for=600s"),
            (
                "readonly",
                fault(ReadOnly, Some(600), 0),
                "readonly,for=600s",
            ),
        ] {
            let read = ClaimFault::parse(text);
            assert_eq!(read, Ok(expected), "{text:?}");
            assert_eq!(expected.to_string(), written);
            assert_eq!(ClaimFault::parse(written), Ok(expected));
        }
        let short = ClaimFault::parse("gone,for=1500ms").unwrap();
        assert_eq!(short.to_string(), "gone,for=1.5s");
    }

    #[test]
    fn every_word_begins_a_fault() {
        for word in FaultKind::WORDS {
            let value = if word.ends_with('=') { "4Ki" } else { "" };
            let fault = ClaimFault::parse(&format!("{word}{value}")).unwrap();
            assert_eq!(fault.kind.name(), word.trim_end_matches('='));
        }
    }

    #[test]
    fn messages_name_a_fault_as_it_is_written() {
        for (text, message, is_named) in [
            (
                "gone",
                "The volume has the fault gone,for=600s, which",
                true,
            ),
            ("gone", "gets the fault gone,for=600s once a pod", true),
            ("gone,for=5m", "The fault gone,for=600s has ended", false),
            ("gone", "The fault gone,for=600s,seed=1 has ended", false),
            ("gone,seed=1", "the fault gone,for=600s,seed=1: no", true),
            ("gone,seed=1", "the fault gone,for=600s,seed=12: no", false),
            ("powercut", "has had the fault powercut: delete", true),
            (
                "powercut",
                "has had the fault powercut,seed=1: delete",
                false,
            ),
            (
                "powercut",
                "The annotation hostloop.csi.dev/fault has no effect",
                false,
            ),
        ] {
            let fault = ClaimFault::parse(text).unwrap();
            assert_eq!(fault.is_named_in(message), is_named, "{text}: {message}");
        }
    }

    #[test]
    fn errors_name_the_field_and_the_reason() {
        let long = format!("gone,seed={}", "1".repeat(300));
        for (text, error) in [
            ("", "unknown fault \"\"; there are gone"),
            ("Gone", "unknown fault \"Gone\""),
            ("gone=1", "unknown fault \"gone=1\""),
            ("eio-from", "unknown fault \"eio-from\""),
            (
                "eio-from=0",
                "eio-from: \"0\" is not a positive multiple of 4096",
            ),
            (
                "eio-from=1000",
                "eio-from: \"1000\" is not a positive multiple",
            ),
            ("eio-from=-4Ki", "eio-from: \"-4Ki\" is not a size"),
            ("eio-from=much", "eio-from: \"much\" is not a size"),
            ("gone,", "unknown field \"\""),
            ("gone,speed=3", "unknown field \"speed=3\"; there are for"),
            ("gone,for", "unknown field \"for\""),
            ("gone,for=5", "for: \"5\" is not a duration"),
            ("gone,for=0s", "for: \"0s\" lasts for an instant only"),
            ("gone,for=25h", "for: \"25h\" is longer than 86400 s"),
            ("frozen,for=6m", "for: \"6m\" is longer than 300 s"),
            (
                "powercut,for=1s",
                "for: \"1s\" has no meaning: powercut happens",
            ),
            ("gone,for=1m,for=1m", "for: it is there twice"),
            ("gone,seed=1,seed=2", "seed: it is there twice"),
            ("gone,seed=+1", "seed: \"+1\" is not a whole number"),
            ("gone,seed=", "seed: \"\" is not a whole number"),
            (&long, "it has more than 256 bytes"),
        ] {
            let found = ClaimFault::parse(text).unwrap_err().to_string();
            assert!(found.starts_with(error), "{text:?}: {found}");
        }
    }
}

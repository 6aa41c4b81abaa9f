//! The faults that a claim asks for by its annotation: `gone`, `eio-from=1Gi,for=10m,seed=7`. The
//! parameter [`CLASS_PARAMETER`] of a class has the same form, and is for its claims without one.
//!
//! The first word is the fault. `for` limits how long it lasts, and every fault has a maximum. The
//! seed tells a repetition from the fault before it. Faults of fault disks have further fields: `op`,
//! `share`, `file`, `range` and `loss`.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use hostloop_report::fault_disk::{Loss, Operation};
use hostloop_report::quantity;

use crate::duration;

mod file_part;

pub use file_part::FilePart;

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

/// The longest delay of an operation of a disk.
const MAX_DELAY: Duration = Duration::from_secs(30);
/// With a longer delay, a disk may block sync(2) of the whole node for long.
const SHORT_DELAY: Duration = Duration::from_secs(1);

/// The operations of a fault disk that a fault takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskOperations {
    /// Of this kind; `None` for all.
    pub only: Option<Operation>,
    /// The share of these that it takes, in millionths.
    pub share_ppm: u32,
}

impl DiskOperations {
    /// All of them.
    pub const ALL: DiskOperations = DiskOperations {
        only: None,
        share_ppm: WHOLE,
    };
}

/// All operations, in millionths.
const WHOLE: u32 = 1_000_000;

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
    /// Operations of a fault disk fail with EIO.
    Eio(DiskOperations),
    /// Operations of a fault disk fail with ENOSPC.
    NoSpace(DiskOperations),
    /// Operations of a fault disk are answered this much later.
    Slow(Duration, DiskOperations),
    /// The power of a fault disk is cut, and what it has not flushed is lost like this.
    DiskCut(Loss),
}

impl FaultKind {
    /// The word of the annotation.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Gone => "gone",
            FaultKind::EioFrom(_) => "eio-from",
            FaultKind::Powercut | FaultKind::DiskCut(_) => "powercut",
            FaultKind::Frozen => "frozen",
            FaultKind::ReadOnly => "readonly",
            FaultKind::Full => "full",
            FaultKind::Eio(_) => "eio",
            FaultKind::NoSpace(_) => "enospc",
            FaultKind::Slow(..) => "slow",
        }
    }

    /// The words of all faults, for completion: what follows a `=` is missing.
    pub const WORDS: [&str; 9] = [
        "gone",
        "eio-from=",
        "powercut",
        "frozen",
        "readonly",
        "full",
        "eio",
        "enospc",
        "slow=",
    ];

    /// The forms of all faults, for messages.
    fn forms() -> String {
        let words = FaultKind::WORDS.join(", ");
        words
            .replace("eio-from=", "eio-from=OFFSET")
            .replace("slow=", "slow=DELAY")
    }

    /// The operations that it takes; `None` for a fault that is not of single operations.
    fn operations(self) -> Option<DiskOperations> {
        match self {
            FaultKind::Eio(taken) | FaultKind::NoSpace(taken) | FaultKind::Slow(_, taken) => {
                Some(taken)
            }
            _ => None,
        }
    }

    /// True for a fault that only volumes on fault disks can have.
    pub fn is_of_fault_disks(self) -> bool {
        self.operations().is_some() || matches!(self, FaultKind::DiskCut(_))
    }

    /// The fault with these fields, as far as it has them.
    fn with(self, taken: DiskOperations, loss: Option<Loss>) -> FaultKind {
        match self {
            FaultKind::Eio(_) => FaultKind::Eio(taken),
            FaultKind::NoSpace(_) => FaultKind::NoSpace(taken),
            FaultKind::Slow(delay, _) => FaultKind::Slow(delay, taken),
            FaultKind::Powercut => loss.map_or(FaultKind::Powercut, FaultKind::DiskCut),
            other => other,
        }
    }

    /// The usual and the longest time; `None` for a fault that happens at one instant.
    fn times(self) -> Option<(Duration, Duration)> {
        match self {
            FaultKind::Powercut | FaultKind::DiskCut(_) => None,
            FaultKind::Frozen => Some((USUAL_FROZEN, MAX_FROZEN)),
            FaultKind::Slow(delay, _) if delay > SHORT_DELAY => Some((USUAL_FROZEN, MAX_FROZEN)),
            FaultKind::Gone
            | FaultKind::EioFrom(_)
            | FaultKind::ReadOnly
            | FaultKind::Full
            | FaultKind::Eio(_)
            | FaultKind::NoSpace(_)
            | FaultKind::Slow(..) => Some((USUAL, MAX)),
        }
    }
}

/// A fault that a claim asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimFault {
    pub kind: FaultKind,
    /// The file in the volume that alone has it, if it is one of single operations.
    pub file: Option<FilePart>,
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
    #[error(
        "unknown field {0:?}; there are for=DURATION and seed=NUMBER, of eio, enospc and slow also \
         op=OPERATION, share=NUMBER, file=PATH and range=FROM-TO, and of powercut loss=LOSS"
    )]
    UnknownField(String),
    #[error("{0}: it is there twice")]
    Twice(&'static str),
    #[error("range: it is of a file, which file=PATH names")]
    RangeWithoutFile,
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
        let has_operations = kind.operations().is_some();
        let (mut lasts, mut seed) = (None, None);
        let (mut only, mut share, mut loss) = (None, None, None);
        let (mut path, mut bytes) = (None, None);
        for word in words {
            match word.split_once('=') {
                Some(("for", value)) => set(&mut lasts, "for", time(kind, value)?)?,
                Some(("seed", value)) => set(&mut seed, "seed", number(value)?)?,
                Some(("op", value)) if has_operations => {
                    set(&mut only, "op", operation(value)?)?;
                }
                Some(("share", value)) if has_operations => {
                    set(&mut share, "share", share_ppm(value)?)?;
                }
                Some(("file", value)) if has_operations => {
                    set(&mut path, "file", file_part::path(value)?)?;
                }
                Some(("range", value)) if has_operations => {
                    set(&mut bytes, "range", file_part::range(value)?)?;
                }
                Some(("loss", value)) if kind == FaultKind::Powercut => {
                    set(&mut loss, "loss", loss_named(value)?)?;
                }
                _ => return Err(ClaimFaultError::UnknownField(word.to_owned())),
            }
        }
        let usual = kind.times().map(|(usual, _)| usual);
        let taken = DiskOperations {
            only,
            share_ppm: share.unwrap_or(WHOLE),
        };
        Ok(ClaimFault {
            kind: kind.with(taken, loss),
            file: part(path, bytes, only)?,
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
            // Another seed is another fault, and so is another loss.
            !rest.starts_with(",seed=")
                && !rest.starts_with(",loss=")
                && !rest.starts_with(|c: char| c.is_ascii_digit())
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
        if let FaultKind::Slow(delay, _) = self.kind {
            write!(f, "={}s", delay.as_secs_f64())?;
        }
        if let FaultKind::DiskCut(loss) = self.kind {
            write!(f, ",loss={}", loss.name())?;
        }
        if let Some(taken) = self.kind.operations() {
            if let Some(only) = taken.only {
                write!(f, ",op={}", only.name())?;
            }
            if taken.share_ppm != WHOLE {
                write!(
                    f,
                    ",share={}",
                    f64::from(taken.share_ppm) / f64::from(WHOLE)
                )?;
            }
        }
        if let Some(file) = &self.file {
            write!(f, ",{file}")?;
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
        Some(("slow", value)) => FaultKind::Slow(delay(value)?, DiskOperations::ALL),
        None => match word {
            "gone" => FaultKind::Gone,
            "powercut" => FaultKind::Powercut,
            "frozen" => FaultKind::Frozen,
            "readonly" => FaultKind::ReadOnly,
            "full" => FaultKind::Full,
            "eio" => FaultKind::Eio(DiskOperations::ALL),
            "enospc" => FaultKind::NoSpace(DiskOperations::ALL),
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

/// The part of a file that these fields name, if they do. A flush is of a whole disk.
fn part(
    path: Option<String>,
    bytes: Option<Range<u64>>,
    only: Option<Operation>,
) -> Result<Option<FilePart>, ClaimFaultError> {
    match (path, bytes) {
        (Some(_), _) if only == Some(Operation::Flush) => {
            Err(wrong("op", "flush", "is of the whole disk, and of no file"))
        }
        (Some(path), bytes) => Ok(Some(FilePart { path, bytes })),
        (None, Some(_)) => Err(ClaimFaultError::RangeWithoutFile),
        (None, None) => Ok(None),
    }
}

/// A size in bytes.
fn size(value: &str) -> Option<u64> {
    let bytes = quantity::bytes(value)?;
    u64::try_from(bytes).ok()
}

fn offset(value: &str) -> Result<u64, ClaimFaultError> {
    match size(value) {
        Some(bytes) if bytes > 0 && bytes.is_multiple_of(BLOCK) => Ok(bytes),
        Some(_) => Err(wrong(
            "eio-from",
            value,
            format!("is not a positive multiple of {BLOCK}"),
        )),
        None => Err(wrong("eio-from", value, "is not a size such as 512Mi")),
    }
}

fn delay(value: &str) -> Result<Duration, ClaimFaultError> {
    match duration::parse(value) {
        Ok(delay) if delay.as_micros() > 0 && delay <= MAX_DELAY => Ok(delay),
        Ok(_) => {
            let why = format!("is not from 1 µs to {} s", MAX_DELAY.as_secs());
            Err(wrong("slow", value, why))
        }
        Err(_) => Err(wrong("slow", value, "is not a duration such as 20ms or 1s")),
    }
}

fn operation(value: &str) -> Result<Operation, ClaimFaultError> {
    let named = Operation::ALL.into_iter().find(|one| one.name() == value);
    named.ok_or_else(|| wrong("op", value, "is none of read, write, flush and discard"))
}

fn share_ppm(value: &str) -> Result<u32, ClaimFaultError> {
    let is_plain = value
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share = value.parse::<f64>().ok().filter(|_| is_plain);
    let ppm = share.map(|share| (share * f64::from(WHOLE)).round() as u32);
    ppm.filter(|ppm| (1..=WHOLE).contains(ppm))
        .ok_or_else(|| wrong("share", value, "is not a number above 0 and up to 1"))
}

fn loss_named(value: &str) -> Result<Loss, ClaimFaultError> {
    let named = Loss::ALL.into_iter().find(|one| one.name() == value);
    named.ok_or_else(|| {
        let why = "is none of all, some, torn-blocks and torn-sectors";
        wrong("loss", value, why)
    })
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
mod tests;

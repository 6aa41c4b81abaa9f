//! `--per-controller`: the value of a shared flag for one controller.

use std::str::FromStr;
use std::time::Duration;

use crate::api::duration;
use crate::controller::context::Common;
use crate::roles::Role;

/// Parses the value of a shared flag.
type ParseValue = fn(&str) -> Result<SharedValue, String>;

/// The flags that several controllers share, without their dashes.
const SHARED_FLAGS: [(&str, ParseValue); 7] = [
    ("timeout", |value| {
        duration::parse(value).map(SharedValue::Timeout)
    }),
    ("worker-threads", |value| {
        let count = value.parse().map(SharedValue::WorkerThreads);
        count.map_err(|_| format!("{value:?} is not a number"))
    }),
    ("retry-interval-start", |value| {
        duration::parse(value).map(SharedValue::RetryIntervalStart)
    }),
    ("retry-interval-max", |value| {
        duration::parse(value).map(SharedValue::RetryIntervalMax)
    }),
    ("resync-period", |value| {
        duration::parse(value).map(SharedValue::ResyncPeriod)
    }),
    ("extra-create-metadata", |value| {
        boolean(value).map(SharedValue::ExtraCreateMetadata)
    }),
    ("default-fstype", |value| {
        Ok(SharedValue::DefaultFstype(value.to_owned()))
    }),
];

/// The controllers with values of their own, and which shared flags each of them reads.
const FLAGS_OF: [(Role, &[&str]); 6] = [
    (
        Role::Provisioner,
        &[
            "timeout",
            "worker-threads",
            "retry-interval-start",
            "retry-interval-max",
            "resync-period",
            "extra-create-metadata",
            "default-fstype",
        ],
    ),
    (
        Role::Attacher,
        &[
            "timeout",
            "worker-threads",
            "retry-interval-start",
            "retry-interval-max",
            "default-fstype",
        ],
    ),
    (
        Role::Resizer,
        &[
            "timeout",
            "worker-threads",
            "retry-interval-start",
            "retry-interval-max",
            "resync-period",
        ],
    ),
    (
        Role::Snapshotter,
        &[
            "timeout",
            "worker-threads",
            "retry-interval-start",
            "retry-interval-max",
            "resync-period",
            "extra-create-metadata",
        ],
    ),
    (Role::Health, &["timeout", "worker-threads"]),
    (
        Role::SnapshotController,
        &[
            "worker-threads",
            "retry-interval-start",
            "retry-interval-max",
        ],
    ),
];

/// The value of a shared flag for one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerController {
    role: Role,
    value: SharedValue,
}

/// A shared flag with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SharedValue {
    Timeout(Duration),
    WorkerThreads(usize),
    RetryIntervalStart(Duration),
    RetryIntervalMax(Duration),
    ResyncPeriod(Duration),
    ExtraCreateMetadata(bool),
    DefaultFstype(String),
}

/// An invalid value of `--per-controller`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PerControllerError {
    #[error("{0:?} is not NAME-FLAG=VALUE, as in attacher-timeout=30s")]
    Form(String),
    #[error("no controller has a value of its own for {0:?}; there are {names}", names = names())]
    Unknown(String),
    #[error("{flag}: {why}")]
    Value { flag: String, why: String },
}

impl PerController {
    /// True if a controller can have a value of its own under this name, as `attacher-timeout`.
    pub fn has(name: &str) -> bool {
        find(name).is_some()
    }

    /// Sets the value in the flags of `role`, if it is that controller's. The capacity is a part of
    /// upstream's provisioner, so it has the provisioner's values.
    pub(crate) fn set(&self, role: Role, common: &mut Common) {
        let role = match role {
            Role::Capacity => Role::Provisioner,
            other => other,
        };
        if role != self.role {
            return;
        }
        match &self.value {
            SharedValue::Timeout(timeout) => common.timeout = Some(*timeout),
            SharedValue::WorkerThreads(count) => common.worker_threads = Some(*count),
            SharedValue::RetryIntervalStart(wait) => common.retry_interval_start = Some(*wait),
            SharedValue::RetryIntervalMax(wait) => common.retry_interval_max = Some(*wait),
            SharedValue::ResyncPeriod(period) => common.resync_period = Some(*period),
            SharedValue::ExtraCreateMetadata(passed) => common.extra_create_metadata = *passed,
            SharedValue::DefaultFstype(fs) => common.default_fstype.clone_from(fs),
        }
    }
}

/// The controller and the parser of the flag that a name such as `attacher-timeout` joins.
fn find(name: &str) -> Option<(Role, ParseValue)> {
    FLAGS_OF.iter().find_map(|(role, flags)| {
        let flag = name.strip_prefix(role.name())?.strip_prefix('-')?;
        let flag = flags.iter().find(|one| **one == flag)?;
        let (_, parse) = SHARED_FLAGS.iter().find(|(shared, _)| shared == flag)?;
        Some((*role, *parse))
    })
}

fn names() -> String {
    let names: Vec<String> = FLAGS_OF
        .iter()
        .flat_map(|(role, flags)| flags.iter().map(move |flag| format!("{role}-{flag}")))
        .collect();
    names.join(", ")
}

impl FromStr for PerController {
    type Err = PerControllerError;

    fn from_str(word: &str) -> Result<Self, PerControllerError> {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| PerControllerError::Form(word.to_owned()))?;
        let (role, parse) =
            find(name).ok_or_else(|| PerControllerError::Unknown(name.to_owned()))?;
        let value = parse(value).map_err(|why| PerControllerError::Value {
            flag: name.to_owned(),
            why,
        })?;
        Ok(PerController { role, value })
    }
}

/// The forms of Go programs.
fn boolean(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "t" | "1" => Ok(true),
        "false" | "f" | "0" => Ok(false),
        _ => Err(format!("{value:?} is neither true nor false")),
    }
}

#[cfg(test)]
mod tests;

//! The command line of Kubernetes' sidecars, and of the one sidecar in place of them (KEP-4958). It
//! becomes one of `hostloop controllers`, so that their manifests work with the image swapped.
//! Pure.

use std::ffi::OsString;

use hostloop_controllers::per_controller::PerController;
use hostloop_controllers::roles::{Role, SIDECARS};

/// What becomes of a flag of the sidecars that `hostloop controllers` does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SidecarFlag {
    /// `hostloop controllers` has it under this name.
    Named(&'static str),
    /// Its first text is the only value that may be given. The second says what to do instead.
    Only(&'static str, &'static str),
    /// It names features. All of them are always on, except [`FOREIGN_SOURCES`].
    Features,
    /// It has a value, and no effect.
    IgnoredValue,
    /// It is a boolean, and has no effect.
    IgnoredSwitch,
}

/// Flags of the sidecars.
const FLAGS: [(&str, SidecarFlag); 17] = [
    ("metrics-address", SidecarFlag::Named("http-endpoint")),
    (
        "metrics-path",
        SidecarFlag::Only(
            "/metrics",
            "metrics are at /metrics of --http-endpoint; leave the flag out",
        ),
    ),
    (
        "master",
        SidecarFlag::Only(
            "",
            "the kubeconfig names the server; set --kubeconfig instead",
        ),
    ),
    (
        "mode",
        SidecarFlag::Only(
            "registration",
            "/healthz at --health-port covers the registration; probe it instead",
        ),
    ),
    (
        "threads",
        SidecarFlag::Only("10", "set --snapshot-controller-worker-threads instead"),
    ),
    ("feature-gates", SidecarFlag::Features),
    ("automaxprocs", SidecarFlag::IgnoredSwitch),
    ("enable-pprof", SidecarFlag::IgnoredSwitch),
    ("max-grpc-log-length", SidecarFlag::IgnoredValue),
    ("capacity-threads", SidecarFlag::IgnoredValue),
    (
        "node-deployment-immediate-binding",
        SidecarFlag::IgnoredSwitch,
    ),
    ("node-deployment-base-delay", SidecarFlag::IgnoredValue),
    ("node-deployment-max-delay", SidecarFlag::IgnoredValue),
    ("retry-crd-interval-max", SidecarFlag::IgnoredValue),
    ("volume-list-add-interval", SidecarFlag::IgnoredValue),
    ("node-list-add-interval", SidecarFlag::IgnoredValue),
    ("operation-timeout", SidecarFlag::IgnoredValue),
];

/// Flags of Go's logging libraries. They may have underscores instead of hyphens.
const LOGGING: [(&str, SidecarFlag); 18] = [
    ("logging-format", SidecarFlag::Named("log-format")),
    ("logtostderr", SidecarFlag::IgnoredSwitch),
    ("alsologtostderr", SidecarFlag::IgnoredSwitch),
    ("one-output", SidecarFlag::IgnoredSwitch),
    ("skip-headers", SidecarFlag::IgnoredSwitch),
    ("skip-log-headers", SidecarFlag::IgnoredSwitch),
    ("add-dir-header", SidecarFlag::IgnoredSwitch),
    ("stderrthreshold", SidecarFlag::IgnoredValue),
    ("vmodule", SidecarFlag::IgnoredValue),
    ("log-backtrace-at", SidecarFlag::IgnoredValue),
    ("log-dir", SidecarFlag::IgnoredValue),
    ("log-file", SidecarFlag::IgnoredValue),
    ("log-file-max-size", SidecarFlag::IgnoredValue),
    ("log-flush-frequency", SidecarFlag::IgnoredValue),
    ("log-json-info-buffer-size", SidecarFlag::IgnoredValue),
    ("log-json-split-stream", SidecarFlag::IgnoredSwitch),
    ("log-text-info-buffer-size", SidecarFlag::IgnoredValue),
    ("log-text-split-stream", SidecarFlag::IgnoredSwitch),
];

/// The prefixes of flags for one controller, that controller's name, and the flags that it alone
/// has. Without their prefix they mean the same.
const PREFIXES: [(&str, &str, &[&str]); 7] = [
    (
        "attacher",
        "attacher",
        &[
            "resync",
            "reconcile-sync",
            "max-entries",
            "max-grpc-log-length",
        ],
    ),
    (
        "provisioner",
        "provisioner",
        &[
            "volume-name-prefix",
            "volume-name-uuid-length",
            "cloning-protection-threads",
            "snapshot-orphan-sweep-interval",
            "strict-topology",
            "immediate-topology",
            "controller-publish-readonly",
            "prevent-volume-mode-conversion",
            "enable-capacity",
            "capacity-threads",
            "capacity-poll-interval",
            "capacity-for-immediate-binding",
            "capacity-ownerref-level",
            "kube-api-capacity-qps",
            "kube-api-capacity-burst",
            "node-deployment",
            "node-deployment-immediate-binding",
            "node-deployment-base-delay",
            "node-deployment-max-delay",
            "enable-pprof",
        ],
    ),
    (
        "resizer",
        "resizer",
        &[
            "workers",
            "resize-timeout",
            "modify-timeout",
            "handle-volume-inuse-error",
            "extra-modify-metadata",
        ],
    ),
    (
        "snapshotter",
        "snapshotter",
        &[
            "snapshot-name-prefix",
            "snapshot-name-uuid-length",
            "groupsnapshot-name-prefix",
            "groupsnapshot-name-uuid-length",
            "node-deployment",
        ],
    ),
    ("health", "health", HEALTH),
    ("health-monitor", "health", HEALTH),
    ("snapshot-controller", "snapshot-controller", &[]),
];

const HEALTH: &[&str] = &[
    "monitor-interval",
    "list-volumes-interval",
    "enable-node-watcher",
    "volume-list-add-interval",
    "node-list-add-interval",
];

/// The flag that selects controllers. Its value may begin with a dash.
const CONTROLLERS: &str = "controllers";

/// The flag that switches on the part of upstream's provisioner which is a controller here.
const CAPACITY: &str = "enable-capacity";

/// A flag that several prefixes have, with one value for all.
const NODE_DEPLOYMENT: &str = "node-deployment";

/// A boolean flag that several controllers share.
const EXTRA_METADATA: &str = "extra-create-metadata";

/// The feature that no controller has: sources of claims in other namespaces.
const FOREIGN_SOURCES: &str = "CrossNamespaceVolumeDataSource";

/// Flags that Go's programs take as not given if their value is empty.
const UNSET_IF_EMPTY: [&str; 5] = [
    "kubeconfig",
    "http-endpoint",
    "leader-election-namespace",
    "leader-election-labels",
    "kubelet-registration-path",
];

/// A command line of the sidecars, as one of `hostloop controllers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarLine {
    /// The command line.
    pub line: Vec<OsString>,
    /// True if it had no subcommand.
    is_bare: bool,
    /// Flags without an effect.
    ignored: Vec<String>,
}

/// Why a command line of the sidecars can't be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SidecarLineError {
    /// A flag has a value that no controller can follow.
    #[error("--{flag}={value} is not supported: {instead}")]
    Value {
        /// The flag, as it was typed.
        flag: String,
        /// Its value.
        value: String,
        /// What to do.
        instead: &'static str,
    },
}

impl SidecarLine {
    /// Reads a command line of `hostloop controllers`, or one without a subcommand that selects
    /// controllers; `None` for any other. What the tables do not have stays as it is, for
    /// `hostloop controllers` to judge.
    pub fn read(line: &[OsString]) -> Result<Option<SidecarLine>, SidecarLineError> {
        let words: Option<Vec<&str>> = line.iter().map(|word| word.to_str()).collect();
        let Some(words) = words else {
            return Ok(None);
        };
        let Some((program, words)) = words.split_first() else {
            return Ok(None);
        };
        let named = words.strip_prefix(&["controllers"]);
        if named.is_none() && !is_bare(words) {
            return Ok(None);
        }
        let mut read = SidecarWords::default();
        read.words(named.unwrap_or(words))?;
        let mut line = vec![OsString::from(program), OsString::from("controllers")];
        line.extend(read.selection().map(OsString::from));
        line.extend(read.line.into_iter().map(OsString::from));
        Ok(Some(SidecarLine {
            line,
            is_bare: named.is_none(),
            ignored: read.ignored,
        }))
    }

    /// What a person should know about it, if anything.
    pub fn remark(&self) -> Option<String> {
        let ignored = self.ignored.join(", ");
        if !self.is_bare {
            return (!ignored.is_empty()).then(|| {
                format!("hostloop: flags of Kubernetes' sidecars that have no effect: {ignored}")
            });
        }
        let ignored = if ignored.is_empty() {
            String::new()
        } else {
            format!("; ignored: {ignored}")
        };
        Some(format!(
            "hostloop: read as a command line of Kubernetes' sidecars, for `controllers`{ignored}"
        ))
    }
}

/// True if these words are flags without a subcommand, and select controllers.
fn is_bare(words: &[&str]) -> bool {
    let begins = words.first().is_some_and(|word| flag(word).is_some());
    let mut flags = words.iter().filter_map(|word| flag(word));
    begins && flags.any(|(name, _)| name == CONTROLLERS)
}

/// The name of a flag, after one dash or two as in Go, and its value if that is in the same word.
/// A single letter after one dash is a flag of Go only as `-v`.
pub(super) fn flag(word: &str) -> Option<(&str, Option<&str>)> {
    let one = word.strip_prefix('-')?;
    let two = one.strip_prefix('-');
    let (name, value) = match two.unwrap_or(one).split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (two.unwrap_or(one), None),
    };
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic());
    let is_long = two.is_some() || name.len() > 1 || name == "v";
    (is_name && is_long).then_some((name, value))
}

/// The meaning of a flag that `hostloop controllers` does not have.
fn meaning(name: &str) -> Option<SidecarFlag> {
    let hyphens = name.replace('_', "-");
    let sidecars = FLAGS.iter().find(|(flag, _)| *flag == name);
    let known = sidecars.or_else(|| LOGGING.iter().find(|(flag, _)| *flag == hyphens));
    known.map(|(_, meaning)| *meaning)
}

/// A flag behind the prefix of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Prefixed {
    /// One that no other controller has: its name without the prefix.
    Own(&'static str),
    /// A shared one: the name of the controller and the flag, for `--per-controller`.
    Shared(String),
}

fn prefixed(name: &str) -> Option<Prefixed> {
    PREFIXES.iter().find_map(|(prefix, controller, own)| {
        let flag = name.strip_prefix(prefix)?.strip_prefix('-')?;
        if let Some(own) = own.iter().find(|own| **own == flag) {
            return Some(Prefixed::Own(own));
        }
        // KEP-4958 has the singular in its examples.
        let flag = match flag {
            "worker-thread" => "worker-threads",
            other => other,
        };
        let shared = format!("{controller}-{flag}");
        PerController::has(&shared).then_some(Prefixed::Shared(shared))
    })
}

/// What has been read.
#[derive(Debug, Default)]
struct SidecarWords {
    /// The words for `hostloop controllers`, without the selection of controllers.
    line: Vec<String>,
    /// The selected controllers; the last selection counts, as in Go.
    controllers: Option<String>,
    /// True if the provisioner is to publish capacity.
    has_capacity: bool,
    ignored: Vec<String>,
}

impl SidecarWords {
    fn words(&mut self, words: &[&str]) -> Result<(), SidecarLineError> {
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            match flag(word) {
                Some((name, value)) => self.take(name, value, &mut words)?,
                None => self.line.push(word.to_owned()),
            }
        }
        Ok(())
    }

    /// Takes a flag. Its value may be the next of the words.
    fn take<'w>(
        &mut self,
        typed: &str,
        value: Option<&'w str>,
        rest: &mut impl Iterator<Item = &'w str>,
    ) -> Result<(), SidecarLineError> {
        let (name, value) = match prefixed(typed) {
            Some(Prefixed::Shared(shared)) => {
                let value = match value {
                    None if shared.ends_with(EXTRA_METADATA) => "true",
                    None => rest.next().unwrap_or_default(),
                    Some(value) => value,
                };
                self.line.push(format!("--per-controller={shared}={value}"));
                return Ok(());
            }
            Some(Prefixed::Own(NODE_DEPLOYMENT)) => {
                self.push_once(NODE_DEPLOYMENT, value.unwrap_or("true"));
                return Ok(());
            }
            Some(Prefixed::Own(own)) => (own, value),
            None => (typed, value),
        };
        match meaning(name) {
            None => self.pass(name, value, rest),
            Some(SidecarFlag::IgnoredSwitch) => self.ignore(typed),
            Some(SidecarFlag::IgnoredValue) => {
                let _value = value.or_else(|| rest.next());
                self.ignore(typed);
            }
            Some(SidecarFlag::Named(own)) => {
                let value = value.or_else(|| rest.next());
                self.pass(own, Some(value.unwrap_or_default()), rest);
            }
            Some(SidecarFlag::Features) => {
                let value = value.or_else(|| rest.next()).unwrap_or_default();
                check_features(typed, value)?;
                self.ignore(typed);
            }
            Some(SidecarFlag::Only(only, instead)) => {
                let value = value.or_else(|| rest.next()).unwrap_or_default();
                if value != only {
                    return Err(SidecarLineError::Value {
                        flag: typed.to_owned(),
                        value: value.to_owned(),
                        instead,
                    });
                }
            }
        }
        Ok(())
    }

    /// Takes a flag of `hostloop controllers`.
    fn pass<'w>(
        &mut self,
        name: &str,
        value: Option<&'w str>,
        rest: &mut impl Iterator<Item = &'w str>,
    ) {
        if name == CONTROLLERS
            && let Some(value) = value.or_else(|| rest.next())
        {
            self.controllers = Some(value.to_owned());
            return;
        }
        if value == Some("") && UNSET_IF_EMPTY.contains(&name) {
            return;
        }
        self.has_capacity |= name == CAPACITY;
        self.line.push(match value {
            Some(value) => format!("--{name}={value}"),
            None => format!("--{name}"),
        });
    }

    /// Adds a flag that several prefixes may give with the same value.
    fn push_once(&mut self, name: &str, value: &str) {
        let word = format!("--{name}={value}");
        if !self.line.contains(&word) {
            self.line.push(word);
        }
    }

    fn ignore(&mut self, name: &str) {
        let ignored = format!("--{name}");
        if !self.ignored.contains(&ignored) {
            self.ignored.push(ignored);
        }
    }

    /// The flag that selects the controllers. Upstream's provisioner publishes the capacity, too.
    fn selection(&self) -> Option<String> {
        let list = self.controllers.as_deref()?;
        let names: Vec<&str> = list.split(',').map(str::trim).collect();
        let provisions = names.iter().any(|name| is_provisioner(name));
        let is_decided = names
            .iter()
            .any(|name| ["capacity", "-capacity", "*"].contains(name));
        if self.has_capacity && provisions && !is_decided {
            return Some(format!("--{CONTROLLERS}={list},{}", Role::Capacity));
        }
        Some(format!("--{CONTROLLERS}={list}"))
    }
}

fn is_provisioner(name: &str) -> bool {
    name == Role::Provisioner.name() || SIDECARS.contains(&(name, Role::Provisioner))
}

/// Refuses a feature that no controller has.
fn check_features(flag: &str, gates: &str) -> Result<(), SidecarLineError> {
    let foreign = gates
        .split(',')
        .filter_map(|gate| gate.trim().split_once('='))
        .find(|(name, on)| *name == FOREIGN_SOURCES && !matches!(*on, "false" | "f" | "0"));
    match foreign {
        None => Ok(()),
        Some((name, on)) => Err(SidecarLineError::Value {
            flag: flag.to_owned(),
            value: format!("{name}={on}"),
            instead: "sources of claims are in the claim's own namespace; leave the gate out",
        }),
    }
}

#[cfg(test)]
mod tests;

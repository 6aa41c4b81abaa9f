//! The command line of the host-path CSI driver: its manifests give flags without a subcommand. It
//! becomes one of `hostloop serve`, so that these manifests work with the image swapped. Pure.

use std::ffi::OsString;

use super::sidecar_line::flag;

/// What becomes of a flag of the host-path driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostPathFlag {
    /// `hostloop serve` has it, with a value.
    Value,
    /// `hostloop serve` has it, as a boolean.
    Switch,
    /// Names the directory of volumes. Becomes the directory of the pools.
    Directory,
    /// Names a kind of volumes and its capacity. Becomes a pool.
    Kind,
    /// It has a value, and no effect.
    IgnoredValue,
    /// It is a boolean, and has no effect.
    IgnoredSwitch,
}

/// The flags of the host-path driver, and those of Go's logging library.
const FLAGS: [(&str, HostPathFlag); 33] = [
    ("drivername", HostPathFlag::Value),
    ("endpoint", HostPathFlag::Value),
    ("nodeid", HostPathFlag::Value),
    ("v", HostPathFlag::Value),
    ("maxvolumespernode", HostPathFlag::Value),
    ("attach-limit", HostPathFlag::Value),
    ("max-volume-size", HostPathFlag::Value),
    ("max-volume-size-node", HostPathFlag::Value),
    ("accepted-mutable-parameter-names", HostPathFlag::Value),
    ("snapshot-metadata-block-type", HostPathFlag::Value),
    ("enable-attach", HostPathFlag::Switch),
    ("enable-topology", HostPathFlag::Switch),
    ("enable-volume-expansion", HostPathFlag::Switch),
    ("disable-controller-expansion", HostPathFlag::Switch),
    ("disable-node-expansion", HostPathFlag::Switch),
    ("enable-controller-modify-volume", HostPathFlag::Switch),
    ("enable-snapshot-metadata", HostPathFlag::Switch),
    ("check-volume-lifecycle", HostPathFlag::Switch),
    ("statedir", HostPathFlag::Directory),
    ("capacity", HostPathFlag::Kind),
    // Kubelet says which volumes are inline ones, and snapshots are always listed.
    ("ephemeral", HostPathFlag::IgnoredSwitch),
    ("enable-list-snapshots", HostPathFlag::IgnoredSwitch),
    ("logtostderr", HostPathFlag::IgnoredSwitch),
    ("alsologtostderr", HostPathFlag::IgnoredSwitch),
    ("one_output", HostPathFlag::IgnoredSwitch),
    ("skip_headers", HostPathFlag::IgnoredSwitch),
    ("skip_log_headers", HostPathFlag::IgnoredSwitch),
    ("add_dir_header", HostPathFlag::IgnoredSwitch),
    ("stderrthreshold", HostPathFlag::IgnoredValue),
    ("vmodule", HostPathFlag::IgnoredValue),
    ("log_backtrace_at", HostPathFlag::IgnoredValue),
    ("log_dir", HostPathFlag::IgnoredValue),
    ("log_file", HostPathFlag::IgnoredValue),
];

/// What the host-path driver does without these flags, where `hostloop serve` does something else.
const DEFAULTS: [(&str, &str); 4] = [
    ("drivername", "hostpath.csi.k8s.io"),
    ("enable-attach", "false"),
    ("topology-key", "topology.hostpath.csi/node"),
    ("ignore-unknown-parameters", "true"),
];

/// Where the host-path driver keeps volumes.
const DIRECTORY: &str = "/csi-data-dir";

/// The flag that configures a pool, without its dashes.
const POOL_FLAG: &str = "pool";

/// A command line of the host-path driver, as one of `hostloop serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPathLine {
    /// The command line.
    pub line: Vec<OsString>,
    /// Flags without an effect.
    ignored: Vec<String>,
}

impl HostPathLine {
    /// Reads a command line that begins with a flag of the host-path driver; `None` for any other.
    /// `is_set` says whether an environment variable is set: it counts more than a default.
    /// What the table does not have stays as it is, for `hostloop serve` to judge.
    pub fn read(line: &[OsString], is_set: impl Fn(&str) -> bool) -> Option<HostPathLine> {
        let words: Option<Vec<&str>> = line.iter().map(|word| word.to_str()).collect();
        let words = words?;
        let (program, words) = words.split_first()?;
        meaning(words.first()?)?;
        let mut read = HostPathWords::default();
        read.words(words);
        let flags = read.finish(&is_set);
        let mut line = vec![OsString::from(program), OsString::from("serve")];
        line.extend(flags.into_iter().map(OsString::from));
        Some(HostPathLine {
            line,
            ignored: read.ignored,
        })
    }

    /// What a person should know about it.
    pub fn remark(&self) -> String {
        let ignored = match self.ignored.join(", ") {
            none if none.is_empty() => String::new(),
            some => format!("; ignored: {some}"),
        };
        format!("hostloop: read as a command line of the host-path driver, for `serve`{ignored}")
    }
}

/// The meaning of a word; `None` if it is not a flag of the host-path driver.
fn meaning(word: &str) -> Option<HostPathFlag> {
    let (name, _) = flag(word)?;
    let known = FLAGS.iter().find(|(flag, _)| *flag == name);
    known.map(|(_, meaning)| *meaning)
}

/// What has been read.
#[derive(Debug, Default)]
struct HostPathWords {
    /// Names of flags with their values; the last value of a name counts, as in Go.
    flags: Vec<(String, String)>,
    directory: Option<String>,
    /// `NAME=SIZE` each.
    kinds: Vec<String>,
    /// Words that are not in the table.
    others: Vec<String>,
    ignored: Vec<String>,
}

impl HostPathWords {
    fn words(&mut self, words: &[&str]) {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (Some(meaning), Some((name, given))) = (meaning(word), flag(word)) else {
                self.others.push((*word).to_owned());
                continue;
            };
            let value = match (given, meaning) {
                (Some(value), _) => value,
                (None, HostPathFlag::Switch | HostPathFlag::IgnoredSwitch) => "true",
                (None, _) => words.next().copied().unwrap_or_default(),
            };
            self.take(name, value, meaning);
        }
    }

    fn take(&mut self, name: &str, value: &str, meaning: HostPathFlag) {
        match meaning {
            HostPathFlag::Value | HostPathFlag::Switch => {
                self.flags.retain(|(earlier, _)| earlier != name);
                self.flags.push((name.to_owned(), value.to_owned()));
            }
            HostPathFlag::Directory => self.directory = Some(value.to_owned()),
            HostPathFlag::Kind => self.kinds.push(value.to_owned()),
            HostPathFlag::IgnoredValue | HostPathFlag::IgnoredSwitch => {
                let ignored = format!("--{name}");
                if !self.ignored.contains(&ignored) {
                    self.ignored.push(ignored);
                }
            }
        }
    }

    /// The flags of `hostloop serve`.
    fn finish(&self, is_set: &impl Fn(&str) -> bool) -> Vec<String> {
        let mut line: Vec<String> = self
            .flags
            .iter()
            .map(|(name, value)| format!("--{name}={value}"))
            .collect();
        for (flag, value) in DEFAULTS {
            if !self.has(flag) && !is_set(&variable(flag)) {
                line.push(format!("--{flag}={value}"));
            }
        }
        if !self.has(POOL_FLAG) && !is_set(&variable(POOL_FLAG)) {
            line.extend(self.pools());
        }
        line.extend(self.kinds.iter().map(|kind| format!("--capacity={kind}")));
        line.extend(self.others.iter().cloned());
        line
    }

    /// True if the command line has this flag of `hostloop serve`.
    fn has(&self, wanted: &str) -> bool {
        let others = self.others.iter().filter_map(|word| flag(word));
        let mut names = self.flags.iter().map(|(name, _)| name.as_str());
        names.any(|name| name == wanted) || others.map(|(name, _)| name).any(|name| name == wanted)
    }

    /// A pool for each kind; without kinds, one pool.
    fn pools(&self) -> Vec<String> {
        let directory = self.directory.as_deref().unwrap_or(DIRECTORY);
        if self.kinds.is_empty() {
            return vec![format!("--{POOL_FLAG}=default={directory}")];
        }
        let names = self.kinds.iter().filter_map(|kind| kind.split_once('='));
        names
            .map(|(name, _)| format!("--{POOL_FLAG}={name}={directory}/{name}"))
            .collect()
    }
}

/// The environment variable of a flag.
fn variable(flag: &str) -> String {
    format!("HOSTLOOP_{}", flag.to_uppercase().replace('-', "_"))
}

#[cfg(test)]
mod tests;

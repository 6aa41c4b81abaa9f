//! Parsers for the values of flags.

use std::fmt;

pub(super) use hostloop_report::driver_name::parse as driver_name;
pub(super) use hostloop_report::flags::endpoint;

use crate::csi::validate;
use crate::kernel::FsType;

/// `NAME=SIZE`: the cap of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cap {
    /// The pool's name.
    pub pool: String,
    /// Maximum bytes that the pool promises.
    pub bytes: u64,
}

impl std::str::FromStr for Cap {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let (pool, bytes) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} is not NAME=SIZE"))?;
        let bytes = crate::storage::config::size(bytes).map_err(|e| e.to_string())?;
        Ok(Cap {
            pool: pool.to_owned(),
            bytes,
        })
    }
}

/// Parses a filesystem type.
pub(super) fn filesystem(word: &str) -> Result<FsType, String> {
    validate::filesystem(word).map_err(|why| format!("{word:?} {why}"))
}

/// Parses an overcommit factor, at least 1.
pub(super) fn overcommit(word: &str) -> Result<f64, String> {
    match word.parse::<f64>() {
        Ok(factor) if factor.is_finite() && factor >= 1.0 => Ok(factor),
        _ => Err(format!("{word:?} is not a factor of 1 or more")),
    }
}

/// Parses a Kubernetes label key: an optional DNS prefix and `/`, then a name.
pub(super) fn label_key(word: &str) -> Result<String, String> {
    let (prefix, name) = word
        .split_once('/')
        .map_or((None, word), |(p, n)| (Some(p), n));
    let prefix_ok = prefix.is_none_or(|prefix| {
        !prefix.is_empty()
            && prefix.len() <= 253
            && prefix.split('.').all(|part| is_label(part, &['-']))
    });
    if prefix_ok && is_label(name, &['-', '_', '.']) {
        return Ok(word.to_owned());
    }
    Err(format!(
        "{word:?} is not a label key such as topology.example.com/node"
    ))
}

/// `KEY=VALUE`: one topology segment of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// A Kubernetes label key.
    pub key: String,
    /// A Kubernetes label value.
    pub value: String,
}

impl std::str::FromStr for Segment {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
        if !is_label_value(value) {
            return Err(format!(
                "{value:?} is not the value of a label: at most 63 letters, digits, '-', '_' and \
                 '.', beginning and ending with a letter or digit"
            ));
        }
        Ok(Segment {
            key: label_key(key)?,
            value: value.to_owned(),
        })
    }
}

/// True if the text is a Kubernetes label value, as a node ID must be for its topology.
pub(crate) fn is_label_value(value: &str) -> bool {
    is_label(value, &['-', '_', '.'])
}

fn is_label(text: &str, inner: &[char]) -> bool {
    text.len() <= 63
        && text.starts_with(is_alphanumeric)
        && text.ends_with(is_alphanumeric)
        && text
            .chars()
            .all(|c| is_alphanumeric(c) || inner.contains(&c))
}

fn is_alphanumeric(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

/// The address for HTTP: `HOST:PORT`, or `:PORT` on all addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpEndpoint(pub String);

impl std::str::FromStr for HttpEndpoint {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let (host, port) = word
            .rsplit_once(':')
            .filter(|(_, port)| port.parse::<u16>().is_ok())
            .ok_or_else(|| format!("{word:?} is not HOST:PORT or :PORT"))?;
        let host = if host.is_empty() { "[::]" } else { host };
        Ok(HttpEndpoint(format!("{host}:{port}")))
    }
}

impl fmt::Display for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

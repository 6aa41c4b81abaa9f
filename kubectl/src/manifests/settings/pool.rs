//! Parses `--pool` of `kubectl hostloop install`.

use std::fmt;
use std::str::FromStr;

use hostloop_report::pool_spec::PoolSpec;

/// The name of the volume with the first pool's directory.
pub(super) const VOLUME: &str = "pool-dir";

/// `NAME=PATH[,OPTION...]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub(crate) name: String,
    pub(crate) path: String,
    /// The options as written, with the comma before each; or empty.
    pub(crate) options: String,
}

impl Pool {
    /// True if the path is a block device and no directory.
    pub(crate) fn is_device(&self) -> bool {
        self.path.starts_with("/dev/")
    }
}

impl FromStr for Pool {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        // The driver's own rules.
        PoolSpec::from_str(word).map_err(|error| error.to_string())?;
        let (name, rest) = word.split_once('=').ok_or("is not NAME=PATH")?;
        let (path, options) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
        Ok(Pool {
            name: name.to_owned(),
            path: path.to_owned(),
            options: options.to_owned(),
        })
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pool {
            name,
            path,
            options,
        } = self;
        write!(f, "{name}={path}{options}")
    }
}

/// The name of the volume with the directory of the pool at this place. The pool's own name may be
/// invalid for a volume.
pub(super) fn volume(place: usize) -> String {
    match place {
        0 => VOLUME.to_owned(),
        n => format!("{VOLUME}-{}", n + 1),
    }
}

//! `--pool` of the node's program, which the client checks before it writes it to a manifest.

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::quantity;

#[cfg(test)]
mod tests;

/// The block size of an image's loop device.
pub const BLOCK_BYTES: u64 = 4096;
/// The smallest image of a pool: XFS has no smaller filesystem.
pub const MIN_IMAGE_BYTES: u64 = 300 << 20;

/// One `--pool NAME=PATH[,option…]` flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// The name that storage classes use to select the pool.
    pub name: String,
    /// A directory or a block device.
    pub path: PathBuf,
    /// `image=SIZE`: keep the pool in one image file of this size (bytes) in the directory.
    pub image_bytes: Option<u64>,
    /// `preallocate`: allocate the image's space at creation.
    pub preallocate: bool,
    /// `wipe`: format a block device even if it holds bytes without a known signature.
    pub wipe: bool,
    /// `capacity=SIZE`: promise at most this many bytes, even if the filesystem has more.
    pub capacity_bytes: Option<u64>,
    /// `inline`: pods may have inline volumes in this pool.
    pub inline: bool,
}

/// An invalid word on the command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?}: {why}")]
pub struct BadOption {
    /// The word as given.
    pub word: String,
    /// The reason why it is invalid.
    pub why: String,
}

/// The error of a word.
pub fn bad(word: &str, why: impl Into<String>) -> BadOption {
    BadOption {
        word: word.to_owned(),
        why: why.into(),
    }
}

/// Parses a size in bytes, written as a Kubernetes quantity: `4096`, `500M`, `20Gi`, `1.5Ti` or
/// `1e9`. A negative number is an error, because a negative fraction would round to zero. So is a
/// suffix or an exponent for fractions of a byte (`500m`, `1e-3`): `m` is a mistake for `M`.
pub fn size(word: &str) -> Result<u64, BadOption> {
    if word.contains('-') || word.ends_with(['n', 'u', 'm']) {
        return Err(bad(
            word,
            "is not a size: it is negative or counts fractions of a byte",
        ));
    }
    let bytes = quantity::bytes(word).and_then(|bytes| u64::try_from(bytes).ok());
    bytes.ok_or_else(|| bad(word, "is not a size below 8Ei, such as 20Gi or 500M"))
}

impl FromStr for PoolSpec {
    type Err = BadOption;

    /// Parses `NAME=PATH[,image=SIZE][,preallocate][,wipe][,capacity=SIZE][,inline]`.
    fn from_str(s: &str) -> Result<Self, BadOption> {
        let mut words = s.split(',');
        let first = words.next().unwrap_or_default();
        let (name, path) = first
            .split_once('=')
            .ok_or_else(|| bad(s, "is not NAME=PATH[,option...]"))?;
        let mut spec = PoolSpec {
            name: pool_name(name)?.to_owned(),
            path: pool_path(path)?,
            image_bytes: None,
            preallocate: false,
            wipe: false,
            capacity_bytes: None,
            inline: false,
        };
        for word in words {
            spec.option(word)?;
        }
        if spec.preallocate && spec.image_bytes.is_none() {
            return Err(bad(s, "preallocate goes with image=SIZE"));
        }
        if spec.wipe && spec.image_bytes.is_some() {
            return Err(bad(s, "wipe needs a block device; delete an image instead"));
        }
        Ok(spec)
    }
}

impl PoolSpec {
    /// The file name of the pool image that `image=SIZE` creates.
    pub fn image_name(&self) -> String {
        format!("{}.pool", self.name)
    }

    fn option(&mut self, word: &str) -> Result<(), BadOption> {
        match word.split_once('=') {
            Some(("image", bytes)) => {
                once(word, self.image_bytes.is_some())?;
                self.image_bytes = Some(image_size(bytes)?);
            }
            Some(("capacity", bytes)) => {
                once(word, self.capacity_bytes.is_some())?;
                self.capacity_bytes = Some(size(bytes)?);
            }
            _ => {
                let flag = match word {
                    "preallocate" => &mut self.preallocate,
                    "inline" => &mut self.inline,
                    "wipe" => &mut self.wipe,
                    _ => {
                        let known = "is not an option of a pool (image=SIZE, preallocate, wipe, \
                                     capacity=SIZE, inline)";
                        return Err(bad(word, known));
                    }
                };
                once(word, *flag)?;
                *flag = true;
            }
        }
        Ok(())
    }
}

/// Fails for an option that is given already.
fn once(word: &str, given: bool) -> Result<(), BadOption> {
    if given {
        Err(bad(word, "is given twice"))
    } else {
        Ok(())
    }
}

/// Checks a pool's name, which becomes part of paths and messages. It has letters, digits, `-`, `_`
/// and `.`, and starts with a letter or digit.
fn pool_name(name: &str) -> Result<&str, BadOption> {
    let ok = name.len() <= 63
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let why = "is not a pool name: at most 63 letters, digits, '-', '_' and '.'";
    if ok { Ok(name) } else { Err(bad(name, why)) }
}

/// Checks a pool's path. It is one of a node, whatever system this program runs on.
fn pool_path(path: &str) -> Result<PathBuf, BadOption> {
    let parsed = Path::new(path);
    if !path.starts_with('/') || parsed.components().any(|c| c == Component::ParentDir) {
        return Err(bad(path, "is not an absolute path without \"..\""));
    }
    Ok(parsed.components().collect())
}

/// The image holds an XFS filesystem and has whole blocks of the loop device's block size.
fn image_size(word: &str) -> Result<u64, BadOption> {
    let bytes = size(word)?.next_multiple_of(BLOCK_BYTES);
    if bytes < MIN_IMAGE_BYTES {
        return Err(bad(word, "is too small for a pool: 300Mi at least"));
    }
    Ok(bytes)
}

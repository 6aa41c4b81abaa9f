//! What the command line says about pools, and how it is read.

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::kernel::{BLOCK_SIZE, FsType};

#[cfg(test)]
mod tests;

/// One `--pool NAME=PATH[,option…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// The name classes choose it by.
    pub name: String,
    /// A directory or a block device.
    pub path: PathBuf,
    /// `image=SIZE`: keep the pool in one image file of this size (bytes) in the directory.
    pub image_bytes: Option<u64>,
    /// `preallocate`: the image's space is taken at once.
    pub preallocate: bool,
    /// `wipe`: format a block device even if it holds bytes without a known signature.
    pub wipe: bool,
    /// `capacity=SIZE`: promise no more than this, whatever the filesystem has (bytes).
    pub capacity_bytes: Option<u64>,
    /// `inline`: pods may have inline volumes in this pool (see [`super::Pools::inline_pools`]).
    pub inline: bool,
}

/// What a pool turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// A directory of a filesystem somebody else manages.
    Directory,
    /// A block device formatted and mounted by us.
    Device,
    /// An image file, formatted and mounted by us.
    Image,
}

/// What holds for all pools.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolOptions {
    /// Where the identities of known pools are kept (`pools.json`), and where the pools we mount
    /// ourselves are mounted (`pools/<name>`).
    pub state_dir: PathBuf,
    /// This node's ID, recorded in each pool as its owner. `None` neither checks nor records it.
    pub node_id: Option<String>,
    /// How many times its room a pool may promise to thin volumes; 1 promises nothing it has not.
    pub overcommit: f64,
    /// Part of each pool that is never promised.
    pub reserve: Reserve,
    /// No volume larger than this (bytes).
    pub max_volume_bytes: Option<u64>,
    /// The longest a filesystem may stay frozen for a copy.
    pub max_freeze: Duration,
}

/// A part of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reserve {
    /// Percent of its size.
    Percent(f64),
    /// Bytes.
    Bytes(u64),
}

impl Reserve {
    /// The part of a filesystem of this size that is never promised, in bytes.
    pub fn of(self, total_bytes: u64) -> u64 {
        match self {
            Reserve::Percent(percent) => (total_bytes as f64 * percent / 100.0) as u64,
            Reserve::Bytes(bytes) => bytes,
        }
    }
}

/// A word of the command line that can't be read: which, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?}: {why}")]
pub struct BadOption {
    /// The word.
    pub word: String,
    /// What is wrong with it.
    pub why: String,
}

fn bad(word: &str, why: impl Into<String>) -> BadOption {
    BadOption {
        word: word.to_owned(),
        why: why.into(),
    }
}

/// Reads a size in bytes as Kubernetes writes quantities: `4096`, `500M`, `20Gi`, `1.5Ti`.
pub fn size(word: &str) -> Result<u64, BadOption> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &word[digits.len()..];
    let unit = unit(suffix).ok_or_else(|| bad(word, format!("{suffix:?} is no unit of size")))?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let number = |s: &str| (s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse::<u128>().ok());
    let parsed = (fraction.len() <= 18)
        .then(|| number(whole).flatten().zip(number(fraction).flatten()))
        .flatten();
    let (whole, part) = parsed.ok_or_else(|| bad(word, "is not a size such as 20Gi or 500M"))?;
    let scale = 10u128.pow(fraction.len() as u32);
    let bytes = whole
        .checked_mul(unit)
        .zip(part.checked_mul(unit))
        .and_then(|(whole, part)| whole.checked_add(part.div_ceil(scale)))
        .and_then(|bytes| u64::try_from(bytes).ok())
        // Sizes are the protocol's int64 and the kernel's off_t.
        .filter(|bytes| *bytes <= i64::MAX as u64);
    bytes.ok_or_else(|| bad(word, "is too large"))
}

fn unit(suffix: &str) -> Option<u128> {
    let binary = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let decimal = ["", "k", "M", "G", "T", "P", "E"];
    let at = |names: [&str; 7]| names.iter().position(|n| *n == suffix).map(|i| i as u32);
    at(binary)
        .map(|i| 1024u128.pow(i))
        .or_else(|| at(decimal).map(|i| 1000u128.pow(i)))
}

impl FromStr for Reserve {
    type Err = BadOption;

    /// `5%`, or a size.
    fn from_str(s: &str) -> Result<Self, BadOption> {
        let Some(percent) = s.strip_suffix('%') else {
            return size(s).map(Reserve::Bytes);
        };
        match percent.parse::<f64>() {
            Ok(p) if (0.0..100.0).contains(&p) => Ok(Reserve::Percent(p)),
            _ => Err(bad(s, "is not a percentage from 0 to less than 100")),
        }
    }
}

impl FromStr for PoolSpec {
    type Err = BadOption;

    /// `NAME=PATH[,image=SIZE][,preallocate][,wipe][,capacity=SIZE][,inline]`.
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
    /// The name of the file a pool of this name is kept in, with `image=SIZE`.
    pub(crate) fn image_name(pool: &str) -> String {
        format!("{pool}.pool")
    }

    fn option(&mut self, word: &str) -> Result<(), BadOption> {
        let once = |given: bool| match given {
            true => Err(bad(word, "is given twice")),
            false => Ok(()),
        };
        match word.split_once('=') {
            Some(("image", bytes)) => {
                once(self.image_bytes.is_some())?;
                self.image_bytes = Some(image_size(bytes)?);
            }
            Some(("capacity", bytes)) => {
                once(self.capacity_bytes.is_some())?;
                self.capacity_bytes = Some(size(bytes)?);
            }
            None if word == "preallocate" => {
                once(self.preallocate)?;
                self.preallocate = true;
            }
            None if word == "inline" => {
                once(self.inline)?;
                self.inline = true;
            }
            None if word == "wipe" => {
                once(self.wipe)?;
                self.wipe = true;
            }
            _ => {
                let known = "is not an option of a pool (image=SIZE, preallocate, wipe, \
                             capacity=SIZE, inline)";
                return Err(bad(word, known));
            }
        }
        Ok(())
    }
}

/// A pool's name becomes part of a path and of messages: letters, digits, `-`, `_` and `.`, not
/// leading with one of these.
fn pool_name(name: &str) -> Result<&str, BadOption> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ok = name.len() <= 63
        && name.bytes().all(inner)
        && name
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphanumeric());
    let why = "is no name for a pool: at most 63 letters, digits, '-', '_' and '.'";
    if ok { Ok(name) } else { Err(bad(name, why)) }
}

fn pool_path(path: &str) -> Result<PathBuf, BadOption> {
    let parsed = Path::new(path);
    if !parsed.is_absolute() || parsed.components().any(|c| c == Component::ParentDir) {
        return Err(bad(path, "is not an absolute path without \"..\""));
    }
    Ok(parsed.components().collect())
}

/// The image holds an XFS, in blocks of the size every loop device has.
fn image_size(word: &str) -> Result<u64, BadOption> {
    let bytes = size(word)?.next_multiple_of(u64::from(BLOCK_SIZE));
    if bytes < FsType::Xfs.minimum_bytes() {
        return Err(bad(word, "is too small for a pool: 300Mi at least"));
    }
    Ok(bytes)
}

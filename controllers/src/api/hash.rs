//! Hashes that names of objects contain.

use hostloop_report::hex;
use sha2::{Digest, Sha256};

/// The SHA-256 hash of all parts, in hexadecimal digits.
pub(crate) fn sha256(parts: &[&str]) -> String {
    hex(&Sha256::digest(parts.concat()))
}

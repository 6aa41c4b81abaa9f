//! Hashes that names of objects contain.

use sha2::{Digest, Sha256};

/// The SHA-256 hash of all parts, in hexadecimal digits.
pub(crate) fn sha256(parts: &[&str]) -> String {
    Sha256::digest(parts.concat())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

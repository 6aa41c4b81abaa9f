//! Has the program linked with relative relocations in their packed form, where that is known.
//!
//! The program is position-independent, and its tables of pointers are filled in when it starts.
//! The list of their places is read whole each time, and stays resident. It is 1.3 MiB long, and
//! 20 KiB when packed.

use std::env;
use std::process::Command;

/// The first GNU C library that reads them.
const SINCE: (u32, u32) = (2, 36);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is_gnu = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    // The program may run with this machine's library or a newer one.
    let is_here = env::var("TARGET").ok() == env::var("HOST").ok();
    if is_gnu && is_here && library().is_some_and(|version| version >= SINCE) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's GNU C library.
fn library() -> Option<(u32, u32)> {
    #[expect(clippy::disallowed_methods, reason = "a tool of the C library")]
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let said = String::from_utf8(said.ok()?.stdout).ok()?;
    let (major, rest) = said.strip_prefix("glibc ")?.trim().split_once('.')?;
    let minor = rest.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

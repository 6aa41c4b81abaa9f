//! The rig of all the driver's tests. It opens pools over a kernel, the fake or Linux, and calls
//! the services as an orchestrator does. The unit tests and the programs in `tests/` each compile
//! it.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    clippy::unwrap_used,
    reason = "each test program uses a part of it, and a test fails by panicking"
)]

/// Asserts that an answer is an error that matches a pattern.
macro_rules! refused {
    ($answer:expr, $why:pat $(, $($context:tt)+)?) => {
        match &$answer {
            Err($why) => {}
            #[allow(unused_variables, reason = "a context may name it")]
            answer => {
                $(eprintln!($($context)+);)?
                panic!("{answer:?} is not {}", stringify!($why))
            }
        }
    };
}
pub(crate) use refused;

mod controller;
mod requests;
mod rig;
pub(crate) mod scenarios;
mod shared;
mod site;

pub(crate) use controller::*;
pub(crate) use requests::*;
pub(crate) use rig::{Configs, Rig};
pub(crate) use shared::{Context, SharedBy, SharedNode};
pub(crate) use site::{
    Site, TestKernel, attach, collect, edit_loops, loop_spec, loops_beneath, new_filesystem, tend,
};
pub(crate) use site::{make_fs, mount_fs, mount_spec, while_busy};

/// The time limit of each wait for a condition. Only a failing test waits this long: a machine can
/// stand still for half a minute, and several of these pauses can follow each other.
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);

/// Looks until it sees what is expected. Fails with what it saw last.
#[track_caller]
pub(crate) fn assert_soon<T: PartialEq + std::fmt::Debug>(
    expected: T,
    mut look: impl FnMut() -> T,
) {
    let end = std::time::Instant::now() + PATIENCE;
    let mut seen = look();
    while seen != expected && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(20));
        seen = look();
    }
    assert_eq!(seen, expected);
}

/// One mebibyte.
pub(crate) const MI: u64 = 1 << 20;

//! The driver as a process, on real pools: one program, because linking eight takes minutes.
//! `scripts/test` runs each module as a step of its own.

mod concurrency;
mod crash;
mod enospc;
mod hostile;
mod leaks;
mod sanity;
mod walk;

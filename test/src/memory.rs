//! The CSI driver in memory.

pub use hostloop_memory_driver::*;

#[cfg(test)]
mod tests;

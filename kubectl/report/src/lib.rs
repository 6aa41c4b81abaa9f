//! What the program of a node and the client of a cluster say to each other: the reports that one
//! prints and the other reads, the events of a process, and the flags that the client passes on.
//! Sizes in flags are quantities.
//!
//! Both programs use these definitions. A report may be of an older or a newer program.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod clock;
pub mod cuts;
pub mod driver_name;
mod error_chain;
pub mod events;
pub mod fault_disk;
pub mod flags;
mod hex;
pub mod image_map;
pub mod machine;
pub mod node_faults;
pub mod pool_files;
pub mod pool_spec;
pub mod quantity;
pub mod reported_problem;
pub mod status;

pub use error_chain::error_chain;
pub use hex::hex;

//! The node service over the model of the kernel: what it does, in which order, and what it
//! leaves when any step fails.

mod bench;
mod failed;
mod faults;
mod inline;
mod publishing;
mod staging;
mod thick;

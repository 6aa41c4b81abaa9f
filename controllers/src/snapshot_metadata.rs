//! Serves the changed blocks of snapshots to backup tools, as Kubernetes' external-snapshot-metadata
//! does (KEP-3314).
//!
//! The checks are in the order of upstream's and have its codes, except that what does not exist is
//! NOT_FOUND. A base needs one more: a snapshot with its handle was in the caller's namespace
//! ([`base`]). Otherwise, whoever can see one snapshot of a volume could compare it with any other.

pub mod base;
pub mod base_history;
pub mod refusal;
pub mod request;
pub mod reviews;
pub mod target;

pub use refusal::Refusal;

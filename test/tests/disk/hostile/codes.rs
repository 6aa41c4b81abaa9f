//! The answers that the tables expect: each request has to get one of its codes.

use tonic::Code;

pub(super) const ABORTED: &[Code] = &[Code::Aborted];
pub(super) const EXHAUSTED: &[Code] = &[Code::ResourceExhausted];
pub(super) const EXISTS: &[Code] = &[Code::AlreadyExists];
pub(super) const INVALID: &[Code] = &[Code::InvalidArgument];
pub(super) const NOT_FOUND: &[Code] = &[Code::NotFound];
pub(super) const OK: &[Code] = &[Code::Ok];
pub(super) const OUT_OF_RANGE: &[Code] = &[Code::OutOfRange];
pub(super) const PRECONDITION: &[Code] = &[Code::FailedPrecondition];

/// More than the pool or a filesystem can ever have.
pub(super) const TOO_LARGE: &[Code] = &[Code::OutOfRange, Code::ResourceExhausted];
pub(super) const BAD_RANGE: &[Code] = &[Code::OutOfRange, Code::InvalidArgument];

/// The answer to a malformed ID: NOT_FOUND, or INVALID_ARGUMENT above 128 bytes.
pub(super) const MISSING: &[Code] = &[Code::NotFound, Code::InvalidArgument];

/// An ID of a pool that is not here: anything but success, and nothing that says it is gone.
pub(super) const FOREIGN: &[Code] = &[Code::NotFound, Code::FailedPrecondition, Code::Unavailable];

/// What is at the path is not what it must be.
pub(super) const WRONG_PLACE: &[Code] = &[
    Code::Internal,
    Code::InvalidArgument,
    Code::FailedPrecondition,
    Code::AlreadyExists,
];

/// As [`WRONG_PLACE`], or there is nothing to take down at the path.
pub(super) const UNTOUCHED: &[Code] = &[
    Code::Ok,
    Code::Internal,
    Code::InvalidArgument,
    Code::FailedPrecondition,
    Code::AlreadyExists,
];

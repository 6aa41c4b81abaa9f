//! The parameters of classes of attributes.

/// The mutable parameters that users have from the manual.
pub(super) const MUTABLE: [&str; 3] = ["directIO", "provisioning", "readAheadKiB"];

/// Those that an administrator may let drivers accept alone. No driver knows the last one, so it is
/// accepted and has no effect.
pub(super) const ACCEPTED: [&str; 3] = ["directIO", "readAheadKiB", "unknown"];

//! The names of leases.

/// Upstream's name of the lease that all snapshot controllers of a cluster share.
pub const SNAPSHOT_CONTROLLER_LEASE: &str = "snapshot-controller-leader";

/// The lease of hostloop's leader in front of the driver of this name.
pub fn leader_lease(driver: &str) -> String {
    lease_name(&format!("hostloop-{driver}"))
}

/// Converts a name or identity as upstream does: `-` replaces everything but letters, digits and
/// `-`, and a trailing `-` gets an `X`.
pub fn lease_name(name: &str) -> String {
    let mut name: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}

//! The names of leases.

/// Converts a name or identity as upstream does: `-` replaces everything but letters, digits and
/// `-`, and a trailing `-` gets an `X`.
pub fn lease_name(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let mut name: String = name.chars().map(keep).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    name
}

//! The policy by which the API server places and labels claims.

use std::path::Path;

/// The ConfigMap the policy places by, as it is deployed.
pub const TABLE: &str = "hostloop-places";

const FILE: &str = "../deploy/components/place-claims/policy.yaml";

/// The policy as it is deployed, but for the names of the driver and of itself, and for the
/// namespace of its table, which is empty.
pub fn place_claims(driver: &str, name: &str, namespace: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let deployed = std::fs::read_to_string(&path);
    let mut policy = deployed.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for (what, deployed, ours) in [
        ("the driver", "'hostloop.csi.dev'", format!("'{driver}'")),
        ("itself", "hostloop-claims", format!("{name}-claims")),
        (
            "its table",
            "namespace: hostloop\n",
            format!("namespace: {namespace}\n"),
        ),
    ] {
        assert!(policy.contains(deployed), "it names {what}");
        policy = policy.replace(deployed, &ours);
    }
    let table = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {TABLE}\n  namespace: {namespace}\n"
    );
    format!("{table}---\n{policy}")
}

//! The policy by which the API server labels claims that the scheduler has placed.

use std::path::Path;

const FILE: &str = "../deploy/components/label-claims/policy.yaml";

/// The policy as it is deployed, but for the names of the driver and of itself.
pub fn label_claims(driver: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let deployed = std::fs::read_to_string(&path);
    let deployed = deployed.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let driver = format!("'{driver}'");
    let policy = deployed
        .replace("'hostloop.csi.dev'", &driver)
        .replace("hostloop-claims", &format!("{name}-claims"));
    assert!(policy.contains(&driver), "it is for a driver");
    policy
}

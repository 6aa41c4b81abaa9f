//! The policy by which the API server labels claims that the scheduler has placed, for a fleet's
//! driver.

use std::path::Path;

use hostloop_test::fleet::Fleet;

const FILE: &str = "../deploy/components/label-claims/policy.yaml";

/// The policy as it is deployed, but for the names of the driver and of itself.
pub(super) fn policy(fleet: &Fleet) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let deployed = std::fs::read_to_string(&path);
    let deployed = deployed.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let driver = format!("'{}'", fleet.driver_name);
    let policy = deployed
        .replace("'hostloop.csi.dev'", &driver)
        .replace("hostloop-claims", &format!("{}-claims", fleet.name));
    assert!(policy.contains(&driver), "it is for a driver");
    policy
}

//! Leader election with the flags that upstream's deployments set for their provisioner.

use std::time::Duration;

use hostloop_test::front::FrontSpec;

use crate::Rig;

/// The provisioner and the capacity loop share one lease. Neither may mistake the other's renewals
/// for another process's.
#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_share_one_lease() {
    let args = [
        "--leader-election",
        "--leader-election-lease-duration=60s",
        "--leader-election-renew-deadline=50s",
        "--leader-election-retry-period=200ms",
        "--enable-capacity",
        "--capacity-ownerref-level=-1",
        "--strict-topology=true",
        "--immediate-topology=false",
    ];
    let spec = FrontSpec::new("elected", "provisioner,capacity").args(&args);
    let rig = Rig::up(spec).await;
    rig.volume("first").await;
    // Allow many renewals, over which two holders would compete.
    tokio::time::sleep(Duration::from_secs(8)).await;
    rig.volume("second").await;
    assert!(!rig.log().contains("cannot renew a lease"), "{}", rig.log());
    rig.down().await;
}

//! Upstream's provisioner before a driver that does all calls, while `hostloop proxy` loses some answers.

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{check, wait_for};
use hostloop_test::front::fields::text;
use serde_json::json;

use crate::site::Site;

/// Each rule, by its name: the provisioner gets UNAVAILABLE this often.
pub(crate) const RULES: &str = "
rules:
- {name: lost-creation, method: CreateVolume, claim: kept, times: 3, answer: lost}
- {name: lost-creation-of-a-deleted-claim, method: CreateVolume, claim: taken-back, times: 4, answer: lost}
- {name: lost-deletion, method: DeleteVolume, times: 3, answer: lost}
";

/// How often each rule takes a call.
const TIMES: [(&str, usize); 3] = [
    ("lost-creation", 3),
    ("lost-creation-of-a-deleted-claim", 4),
    ("lost-deletion", 3),
];

/// A claim gets one volume, however often the answer is lost. One that its user deletes meanwhile leaves
/// none behind, and neither does a volume with lost answers of its deletion.
pub(crate) async fn lost_answers(site: &Site) {
    let kept = site.claim("kept", json!({})).await;
    let volume = site.bound(&kept).await;
    let handle = text(&volume["spec"]["csi"]["volumeHandle"]).to_owned();
    assert_eq!(site.csi.volume_ids().await, [handle.as_str()]);

    let taken_back = site.claim("taken-back", json!({})).await;
    // The first answer is lost by now, and the provisioner waits to ask again.
    until_volumes(site, 2).await;
    site.delete(&taken_back).await;
    until_volumes(site, 1).await;
    assert_eq!(site.csi.volume_ids().await, [handle.as_str()]);

    site.delete(&kept).await;
    until_volumes(site, 0).await;
    // Their deletion ends with an answer.
    wait_for("the end of all volumes", PATIENCE, async || {
        let left = site.objects.list("PersistentVolume", "").await;
        check(left.is_empty(), || format!("{left:?}"))
    })
    .await;
    let log = site.proxy_log();
    for (rule, times) in TIMES {
        let of_rule = |line: &&str| line.split([' ', '"', '=']).any(|word| word == rule);
        let faults = log.lines().filter(|line| line.contains("before_ms"));
        assert_eq!(faults.filter(of_rule).count(), times, "{rule}:\n{log}");
    }
}

/// Waits until the driver has so many volumes.
async fn until_volumes(site: &Site, count: usize) {
    wait_for("the driver's volumes", PATIENCE, async || {
        let ids = site.csi.volume_ids().await;
        check(ids.len() == count, || format!("not {count}: {ids:?}"))
    })
    .await;
}

//! A node reports the health of its own claims alone, once they are bound. The claims of the table are
//! not bound.

use hostloop_test::PATIENCE;
use hostloop_test::front::fields::is_bound;
use hostloop_test::front::objects::Place;
use serde_json::{Value, json};

use crate::site::Site;
use crate::table::{LATE, Outcome};
use crate::target::Target;

const TIME: &str = "only times of the years 0 to 8999 into the health of a claim";

/// Creates a claim of a target, and a volume that it is bound to. Returns the claim's name.
async fn bound_claim(site: &Site, target: Target) -> String {
    let name = format!("health-{}", site.names.of(target));
    let object = |resource| {
        let object = site.names.object(resource, target);
        let mut object = object.expect("a target of each kind");
        object["metadata"]["name"] = json!(name);
        object["spec"]["storageClassName"] = json!("attack-health");
        object
    };
    let (mut volume, mut claim) = (
        object("persistentvolumes"),
        object("persistentvolumeclaims"),
    );
    volume["spec"]["claimRef"] = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": claim["metadata"]["namespace"], "name": name,
    });
    claim["spec"]["volumeName"] = json!(name);
    site.admin.create(volume).await;
    let at = Place::of_object(&site.admin.create(claim).await);
    let bound = site.admin.until(&at, PATIENCE, is_bound).await;
    bound.expect("the cluster binds it");
    name
}

/// A health with this time.
fn health(time: &str) -> Value {
    let condition = json!({"status": "Inaccessible", "reason": "Unplugged", "message": "m"});
    json!({"healthStatus": {"healthConditions": [condition], "lastTransitionTime": time}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_reports_the_health_of_its_own_claims() {
    let site = Site::up().await;
    let (now, elsewhere) = ("2026-01-01T00:00:00Z", "the claim is not one of node");
    let foreign = "the claim is not of driver hostloop.csi.dev";
    for (target, expected) in [
        (Target::Own, Outcome::Yes),
        (Target::Other, Outcome::No(elsewhere)),
        (Target::Unplaced, Outcome::No(elsewhere)),
        (Target::Foreign, Outcome::No(foreign)),
    ] {
        let claim = bound_claim(&site, target).await;
        let found = site.try_claim_status(&claim, health(now)).await;
        let differs = expected.differs_from(&found.clone().map(drop));
        assert_eq!(differs, None, "{target:?}");
        if target != Target::Own {
            continue;
        }
        // The API server has the feature gate: it would drop the health otherwise.
        let stored = found.expect("it is let through");
        let reason = &stored["healthStatus"]["healthConditions"][0]["reason"];
        assert_eq!(*reason, "Unplugged");
        let found = site.try_claim_status(&claim, health(LATE)).await;
        let differs = Outcome::No(TIME).differs_from(&found.map(drop));
        assert_eq!(differs, None);
    }
}

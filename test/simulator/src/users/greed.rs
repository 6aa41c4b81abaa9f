//! What the user of the greedy namespace does.

use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::cluster::GREEDY;
use crate::history::Source;
use crate::users::claims::NewClaim;
use crate::users::{Refused, path_in, send, snapshots};

/// Takes a snapshot of a volume in the greedy namespace, and asks for so many copies of it. Unlike
/// those of a volume, they need not follow each other. Volume and snapshot stay.
pub(crate) async fn be_greedy(client: &Client, copies: u64) -> Result<(), Refused> {
    let at = path_in(GREEDY, "persistentvolumeclaims", "");
    let all = greedy_claim("all", None);
    let spec = json!({"volumeSnapshotClassName": "deleted",
        "source": {"persistentVolumeClaimName": "all"}});
    let mut taken = snapshots::object("all", &spec);
    taken["metadata"]["namespace"] = json!(GREEDY);
    // They may be there.
    let _ = send(client, Method::POST, &at, &all).await;
    let snapshots = path_in(GREEDY, "volumesnapshots", "");
    let _ = send(client, Method::POST, &snapshots, &taken).await;
    for number in 0..copies {
        let source = Source::Snapshot("all".to_owned());
        let copy = greedy_claim(&format!("copy-{number}"), Some(&source));
        send(client, Method::POST, &at, &copy).await?;
    }
    Ok(())
}

fn greedy_claim(name: &str, source: Option<&Source>) -> Value {
    let claim = NewClaim {
        source,
        ..NewClaim::plain(name, "ext4-now", "10Mi")
    };
    let mut claim = claim.object();
    claim["metadata"]["namespace"] = json!(GREEDY);
    claim
}

/// Deletes the copies of the greedy namespace.
pub(crate) async fn be_modest(client: &Client) -> Result<(), Refused> {
    let at = path_in(GREEDY, "persistentvolumeclaims", "");
    let claims = send(client, Method::GET, &at, &Value::Null).await?;
    for claim in claims["items"].as_array().into_iter().flatten() {
        let name = claim["metadata"]["name"].as_str().unwrap_or_default();
        if name.starts_with("copy-") {
            let at = path_in(GREEDY, "persistentvolumeclaims", name);
            send(client, Method::DELETE, &at, &json!({})).await?;
        }
    }
    Ok(())
}

//! Long and odd texts in fields of a claim that the API server does not check.

use hostloop_test::deployed::DRIVER;
use serde_json::{Value, json};

use crate::site::LATER;
use crate::tenant::Tenant;

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// A text of this number, about 14 kB long. No two of them have much in common.
fn long(number: usize) -> String {
    const PIECES: usize = 900;
    let pieces = number * PIECES..(number + 1) * PIECES;
    pieces
        .map(|piece| format!("{:016x}", piece.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect()
}

fn annotated(annotations: Value) -> Value {
    json!({"metadata": {"annotations": annotations}})
}

/// One claim, for which another node is selected again and again.
pub(crate) async fn selected_nodes(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let handed = annotated(json!({PROVISIONER: DRIVER}));
    let claim = tenant.claim("restless", LATER, "1Mi", handed);
    tenant.create(claim).await?;
    for number in 0..count {
        let selected = annotated(json!({SELECTED_NODE: long(number)}));
        tenant
            .change("PersistentVolumeClaim", "restless", selected)
            .await;
    }
    Ok(())
}

/// Claims of classes that do not exist, handed to the process of a node.
pub(crate) async fn classes(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let node = tenant.site.control_plane();
    let claim = |number: usize| {
        let annotations = json!({CLASS: long(number), PROVISIONER: DRIVER, SELECTED_NODE: node});
        let change = json!({
            "metadata": {"annotations": annotations, "labels": {"hostloop.csi.dev/node": node}},
            "spec": {"storageClassName": null}});
        tenant.claim(&format!("classless-{number}"), LATER, "1Mi", change)
    };
    tenant.create_all((0..count).map(claim)).await.map(drop)
}

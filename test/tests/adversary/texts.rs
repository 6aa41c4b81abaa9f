//! Long and odd texts in fields of a claim that the API server does not check.

use hostloop_test::deployed::DRIVER;
use serde_json::{Value, json};

use crate::site::LATER;
use crate::tenant::Tenant;

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
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

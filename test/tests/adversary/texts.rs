//! Long and odd texts in fields of a claim that the API server does not check.

use hostloop_test::deployed::DRIVER;
use hostloop_test::front::fields::{is_bound, name};
use hostloop_test::front::objects::with;
use serde_json::{Value, json};

use crate::by_hand::ENOUGH;
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

/// Claims with sources that have parts of a request in place of a name.
pub(crate) async fn sources(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let names = [
        "?",
        "?watch=true",
        "../../../nodes",
        "a/b",
        "#",
        "%3Fwatch=true",
    ];
    let kinds = [
        json!({"kind": "PersistentVolumeClaim"}),
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot"}),
    ];
    let claim = |number: usize| {
        let named = json!({"name": names[number / 2 % names.len()]});
        let source = with(kinds[number % kinds.len()].clone(), named);
        let change = json!({"spec": {"dataSource": source}});
        tenant.now(&format!("strayed-{number}"), change)
    };
    let made = tenant.create_all((0..count).map(claim)).await?;
    tokio::time::sleep(ENOUGH).await;
    for claim in &made {
        let now = tenant.get("PersistentVolumeClaim", name(claim)).await;
        if now.as_ref().is_some_and(is_bound) {
            return Err(format!("{} has a volume of nothing", name(claim)));
        }
    }
    Ok(())
}

/// Claims that wait for sources with names that no object can have.
pub(crate) async fn names(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let claim = |number: usize| {
        let source = json!({"kind": "PersistentVolumeClaim", "name": long(number)});
        let change = json!({"spec": {"dataSource": source}});
        tenant.now(&format!("waiting-{number}"), change)
    };
    tenant.create_all((0..count).map(claim)).await.map(drop)
}

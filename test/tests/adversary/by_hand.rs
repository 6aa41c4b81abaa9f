//! Fields that the cluster's own controllers set, and references to what belongs to others.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::{Duration, Instant};

use futures::FutureExt;
use hostloop_test::PATIENCE;
use hostloop_test::deployed::DRIVER;
use hostloop_test::front::fields::{is_bound, is_ready_to_use, name};
use hostloop_test::front::objects::with;
use serde_json::{Value, json};

use crate::site::{CHOSEN, LATER, NOW};
use crate::tenant::Tenant;
use crate::victim::{KEPT, VICTIM};

/// Time in which a controller would have done what it must not do.
pub(crate) const ENOUGH: Duration = Duration::from_secs(10);

/// The claims of a namespace, as the administrator sees them.
async fn claims(tenant: &Tenant<'_>, prefix: &str) -> Vec<Value> {
    let mut all = tenant
        .site
        .objects
        .list("PersistentVolumeClaim", &tenant.namespace)
        .await;
    all.retain(|claim| name(claim).starts_with(prefix));
    all
}

/// How long a process takes a node as fit as it was when it read it last.
const RECENT: Duration = Duration::from_secs(11);

/// Nodes that the scheduler would not select, each with late and with immediate binding. No volume
/// of the namespace is on the tainted one, while it is tainted, and while it is cordoned for claims
/// to which its taints do not matter.
pub(crate) async fn selected_nodes(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let unfit = tenant.site.control_plane();
    let nodes = [
        unfit.as_str(),
        "nowhere",
        "",
        "../..",
        "Node 1",
        &"n".repeat(253),
    ];
    // One claim of seven names the cordoned node.
    let of_cordoned = count / 7;
    let claims = (0..count - of_cordoned).map(|n| {
        let class = [LATER, NOW][n / nodes.len() % 2];
        selecting(
            tenant,
            &format!("selected-{n}"),
            class,
            nodes[n % nodes.len()],
        )
    });
    tenant.create_all(claims).await?;
    none_on(tenant, &unfit, "tainted").await?;
    let tried = AssertUnwindSafe(on_cordoned(tenant, &unfit, of_cordoned))
        .catch_unwind()
        .await;
    tenant.site.uncordon().await?;
    tried.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Claims that select a cordoned node. They count as tried once it is taken away from all of them.
async fn on_cordoned(tenant: &Tenant<'_>, node: &str, count: usize) -> Result<(), String> {
    tenant.site.cordon().await?;
    tokio::time::sleep(RECENT).await;
    let made = (0..count).map(|n| selecting(tenant, &format!("cordoned-{n}"), CHOSEN, node));
    tenant.create_all(made).await?;
    let selected = |claim: &Value| {
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == *node
    };
    let end = Instant::now() + PATIENCE;
    while claims(tenant, "cordoned-").await.iter().any(selected) {
        if Instant::now() > end {
            return Err(format!("claims still select the cordoned node {node}"));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    none_on(tenant, node, "cordoned").await
}

/// A claim with this selected node.
fn selecting(tenant: &Tenant<'_>, name: &str, class: &str, node: &str) -> Value {
    let node = json!({"volume.kubernetes.io/selected-node": node});
    let change = json!({"metadata": {"annotations": node}});
    tenant.claim(name, class, "1Mi", change)
}

/// Waits for what must not be done, and fails if a volume of the namespace is on this node.
async fn none_on(tenant: &Tenant<'_>, node: &str, state: &str) -> Result<(), String> {
    tokio::time::sleep(ENOUGH).await;
    let volumes = tenant.site.objects.list("PersistentVolume", "").await;
    let is_there = |volume: &&Value| {
        let affinity = volume["spec"]["nodeAffinity"].to_string();
        volume["spec"]["claimRef"]["namespace"] == tenant.namespace && affinity.contains(node)
    };
    match volumes.iter().filter(is_there).count() {
        0 => Ok(()),
        some => Err(format!("{some} volumes are on the {state} node {node}")),
    }
}

/// Annotations and fields of the PV controller.
pub(crate) async fn bindings(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let [volume, _] = &tenant.prey;
    let provisioner = "volume.kubernetes.io/storage-provisioner";
    let changes = [
        json!({"metadata": {"annotations": {provisioner: "other.csi.dev"}}}),
        json!({"metadata": {"annotations": {provisioner: DRIVER}}}),
        json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes",
            "pv.kubernetes.io/bound-by-controller": "yes"}}}),
        json!({"spec": {"volumeName": volume}}),
        json!({"spec": {"volumeName": volume},
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}),
        json!({"spec": {"volumeName": "hostloop-00000000-0000-4000-8000-000000000000"}}),
        json!({"metadata": {"labels": {"hostloop.csi.dev/node": tenant.site.control_plane()}}}),
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "x",
            "hostloop.csi.dev/pool": "../../etc", "hostloop.csi.dev/node": "x"}}}),
    ];
    let claim = |n: usize| {
        let (name, change) = (format!("bound-{n}"), changes[n % changes.len()].clone());
        match n % 2 {
            0 => tenant.now(&name, change),
            _ => tenant.claim(&name, LATER, "64Mi", change),
        }
    };
    tenant.create_all((0..count).map(claim)).await?;
    tokio::time::sleep(ENOUGH).await;
    let is_stolen = |claim: &&Value| is_bound(claim) && claim["spec"]["volumeName"] == **volume;
    match claims(tenant, "bound-").await.iter().find(is_stolen) {
        None => Ok(()),
        Some(claim) => Err(format!("{} has the victim's volume", name(claim))),
    }
}

/// Sources that are the victim's, another kind, or nothing at all. No claim gets its data.
pub(crate) async fn sources(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let group = "snapshot.storage.k8s.io";
    let [_, content] = &tenant.prey;
    let claim = |name: &str, source: &str, reference: Value| {
        tenant.now(name, json!({"spec": {source: reference}}))
    };
    let snapshot = |name: &str| {
        let source =
            json!({"persistentVolumeClaimName": null, "volumeSnapshotContentName": content});
        let change = json!({"spec": {"volumeSnapshotClassName": null, "source": source}});
        with(tenant.snapshot(name, ""), change)
    };
    let object = |n: usize| {
        let own = format!("source-{n}");
        match n % 8 {
            0 => claim(
                &own,
                "dataSourceRef",
                json!({
                "apiGroup": group, "kind": "VolumeSnapshot", "name": KEPT, "namespace": VICTIM}),
            ),
            1 => claim(
                &own,
                "dataSourceRef",
                json!({
                "kind": "PersistentVolumeClaim", "name": KEPT, "namespace": VICTIM}),
            ),
            2 => claim(
                &own,
                "dataSourceRef",
                json!({
                "apiGroup": "adversary.example.com", "kind": "Nothing", "name": "x"}),
            ),
            3 => claim(
                &own,
                "dataSourceRef",
                json!({
                "apiGroup": group, "kind": "VolumeSnapshotContent", "name": content}),
            ),
            4 => claim(
                &own,
                "dataSource",
                json!({"kind": "PersistentVolumeClaim", "name": own}),
            ),
            5 => claim(
                &own,
                "dataSource",
                json!({
                "apiGroup": group, "kind": "VolumeSnapshot", "name": "x".repeat(253)}),
            ),
            _ => snapshot(&own),
        }
    };
    tenant.create_all((0..count).map(object)).await?;
    tokio::time::sleep(ENOUGH).await;
    let mut all = claims(tenant, "source-").await;
    // Another kind is dropped from `dataSource`, and the claim asks for an empty volume.
    all.retain(|claim| is_bound(claim) && !claim["spec"]["dataSourceRef"].is_null());
    let snapshots = tenant
        .site
        .objects
        .list("VolumeSnapshot", &tenant.namespace)
        .await;
    let taken = |s: &&Value| name(s).starts_with("source-") && is_ready_to_use(s);
    let mut wrong = all.iter().chain(snapshots.iter().filter(taken));
    match wrong.next() {
        None => Ok(()),
        Some(one) => Err(format!(
            "{} has a source it must not have: {}",
            name(one),
            one["spec"]
        )),
    }
}

/// Finalizers that protect claims and their snapshots, taken away.
pub(crate) async fn protection(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let free = &json!({"metadata": {"finalizers": null}});
    let steps = |n: usize| async move {
        let name = format!("bare-{n}");
        tenant.bound(&name, json!({})).await?;
        tenant.ready(&name, &name).await?;
        for kind in ["VolumeSnapshot", "PersistentVolumeClaim"] {
            tenant.delete(kind, &name).await;
            tenant.change(kind, &name, free.clone()).await;
        }
        Ok(())
    };
    tenant.each(count, steps).await
}

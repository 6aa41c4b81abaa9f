//! Large objects of each kind that a namespace's user can create and the controllers watch. An
//! object has at most 256 KiB of annotations, and all in all 1.5 MiB.

use hostloop_test::cluster::pod;
use hostloop_test::deployed::DRIVER;
use hostloop_test::front::objects::{group_snapshot, with};
use serde_json::{Value, json};

use crate::site::LATER;
use crate::tenant::{BRIEF, Tenant};

/// How many bytes each object has more than it needs.
const FILLER: usize = 200_000;
/// Bytes of labels with which a claim is just small enough for the caches: 16 KiB with all else.
const SMALL: usize = 10_000;
/// Volumes without a claim with which a pod is just small enough for the caches: 64 KiB.
const VOLUMES: usize = 590;
/// The longest name in a list, with its prefix.
const NAME: usize = 310;

fn annotated() -> Value {
    json!({"metadata": {"annotations": {"adversary.example.com/filler": "x".repeat(FILLER)}}})
}

/// Qualified names of the greatest length, which take so many bytes.
fn names(bytes: usize) -> impl Iterator<Item = String> {
    let prefix = format!("{}.adversary.example.com", "p".repeat(63));
    let prefix = format!("{0}.{0}.{prefix}", "p".repeat(63));
    (0..bytes / NAME).map(move |n| format!("{prefix}/{n:n>63}"))
}

pub(crate) async fn claims(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let claim = |n| tenant.claim(&format!("annotated-{n}"), LATER, "1Mi", annotated());
    tenant.bomb((0..count).map(claim)).await
}

fn labelled(bytes: usize) -> Value {
    let labels: Value = names(bytes)
        .map(|name| (name, json!("v".repeat(63))))
        .collect();
    json!({"metadata": {"labels": labels}})
}

pub(crate) async fn labels(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let labels = labelled(FILLER);
    let claim = |n| tenant.claim(&format!("labelled-{n}"), LATER, "1Mi", labels.clone());
    tenant.bomb((0..count).map(claim)).await
}

pub(crate) async fn finalizers(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let kept = json!({"metadata": {"finalizers": names(FILLER).collect::<Vec<_>>()}});
    let claim = |n| tenant.claim(&format!("kept-{n}"), LATER, "1Mi", kept.clone());
    tenant.bomb((0..count).map(claim)).await
}

/// Claims that the caches would keep whole.
pub(crate) async fn kept(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let labels = labelled(SMALL);
    let claim = |n| tenant.claim(&format!("small-{n}"), LATER, "1Mi", labels.clone());
    tenant.bomb((0..count).map(claim)).await
}

/// Small claims with texts that do not compress.
pub(crate) async fn noisy(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    const LABELS: usize = 24;
    let claim = |n: usize| {
        let labels: Value = (0..LABELS)
            .map(|label| (format!("l{label}"), json!(noise(n * LABELS + label, 63))))
            .collect();
        let labelled = json!({"metadata": {"labels": labels}});
        tenant.claim(&format!("noisy-{n}"), LATER, "1Mi", labelled)
    };
    tenant.bomb((0..count).map(claim)).await
}

/// A text of this length that does not compress, another one for each seed.
fn noise(seed: usize, length: usize) -> String {
    let mut state = seed as u64;
    let letters = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + (state >> 56) as u8 % 26)
    });
    letters.take(length).collect()
}

/// Small snapshots with values that take far more in memory than in JSON.
pub(crate) async fn brief(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let finalizers: Vec<_> = (0..270).map(|n| format!("{BRIEF}{n:04}")).collect();
    let finalizers = json!({"metadata": {"finalizers": finalizers}});
    let snapshot = |n| {
        let snapshot = tenant.snapshot(&format!("brief-{n}"), "none");
        with(snapshot, finalizers.clone())
    };
    tenant.bomb((0..count).map(snapshot)).await
}

/// Pods with so many volumes that the caches just keep them.
pub(crate) async fn empty_dirs(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let volumes: Vec<Value> = (0..VOLUMES)
        .map(|n| json!({"name": format!("{n:0>63}"), "emptyDir": {}}))
        .collect();
    let spec = with(nowhere(), json!({"volumes": volumes}));
    let idle = |n: usize| {
        let name = format!("empty-dirs-{n}");
        pod(
            &tenant.namespace,
            &name,
            &["true"],
            (&[], &[]),
            spec.clone(),
        )
    };
    tenant.bomb((0..count).map(idle)).await
}

/// The fields of a pod that no node takes.
fn nowhere() -> Value {
    json!({"nodeSelector": {"adversary.example.com/node": "none"}})
}

pub(crate) async fn pods(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let idle = |n: usize| {
        let name = format!("idle-{n}");
        let idle = pod(&tenant.namespace, &name, &["true"], (&[], &[]), nowhere());
        match n % 2 {
            0 => with(idle, annotated()),
            _ => with(
                idle,
                json!({"spec": {"containers": [{
                "name": "main", "image": "none",
                "env": [{"name": "FILLER", "value": "x".repeat(FILLER)}]}]}}),
            ),
        }
    };
    tenant.bomb((0..count).map(idle)).await
}

pub(crate) async fn inline_pods(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let filler = "x".repeat(FILLER);
    let inline = |n: usize| {
        let name = format!("inline-{n}");
        let volumes = json!([{"name": "inline", "csi": {"driver": DRIVER,
            "volumeAttributes": {"size": "1Mi", "filler": filler}}}]);
        let spec = with(nowhere(), json!({"volumes": volumes}));
        pod(&tenant.namespace, &name, &["true"], (&[], &[]), spec)
    };
    tenant.bomb((0..count).map(inline)).await
}

pub(crate) async fn snapshots(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let snapshot = |n| {
        with(
            tenant.snapshot(&format!("annotated-{n}"), "none"),
            annotated(),
        )
    };
    tenant.bomb((0..count).map(snapshot)).await
}

pub(crate) async fn groups(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let selector = json!({"spec": {"source": {"selector": {"matchExpressions": [{
        "key": "adversary", "operator": "In",
        "values": (0..FILLER / 64).map(|n| format!("{n:0>63}")).collect::<Vec<_>>()}]}}}});
    let group = |n: usize| {
        let name = format!("annotated-{n}");
        let group = group_snapshot(&tenant.namespace, &name, "hostloop", ("adversary", "none"));
        with(
            group,
            if n.is_multiple_of(2) {
                annotated()
            } else {
                selector.clone()
            },
        )
    };
    tenant.bomb((0..count).map(group)).await
}

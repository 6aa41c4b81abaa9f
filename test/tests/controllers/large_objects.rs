//! The largest objects that a user of one namespace can write, by the hundred. The controllers
//! must start, serve the others, and stay within the memory that the manifest allows.

use futures::StreamExt;
use hostloop_test::child;
use hostloop_test::front::FrontSpec;
use hostloop_test::front::objects::{self, Place};
use hostloop_test::machine;
use serde_json::{Map, Value, json};

use crate::Rig;

/// The API server allows 256 KiB of annotations.
const ANNOTATIONS: usize = 240_000;

/// Objects that the user writes at a time.
const AT_A_TIME: usize = 24;

/// Text that does not compress, and differs from object to object.
fn noise(seed: usize, length: usize) -> String {
    let mut state = seed as u64 + 1;
    let mut letter = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + u8::try_from((state >> 33) % 26).expect("a letter"))
    };
    (0..length).map(|_| letter()).collect()
}

fn annotated(seed: usize) -> Value {
    json!({"metadata": {"annotations": {"noise": noise(seed, ANNOTATIONS)}}})
}

/// Labels of about as many bytes.
fn labelled(seed: usize) -> Value {
    let label = |i| (format!("l{i}"), Value::from(noise(seed + i, 60)));
    json!({"metadata": {"labels": (0..ANNOTATIONS / 70).map(label).collect::<Map<_, _>>()}})
}

/// A pod on this node with many variables and volumes.
fn pod(namespace: &str, name: &str, node: &str, seed: usize) -> Value {
    let volume = |i| json!({"name": format!("v{i}"), "persistentVolumeClaim": {"claimName": noise(seed + i, 60)}});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "nodeName": node, "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i",
                            "env": [{"name": "E", "value": noise(seed, 2 * ANNOTATIONS)}]}],
            "volumes": (0..500).map(volume).collect::<Vec<_>>(),
        },
    })
}

/// The objects: kind, name and content.
fn flood(namespace: &str, node: &str) -> Vec<Value> {
    let claim = |name: String, change| objects::claim(namespace, &name, "none", "1Gi", change);
    let snapshot = |i: usize| {
        let plain = objects::snapshot(namespace, &format!("s{i}"), "none", "none");
        objects::with(plain, annotated(i))
    };
    let group = |i: usize| {
        let plain = objects::group_snapshot(namespace, &format!("g{i}"), "none", ("a", "b"));
        let selector = labelled(i)["metadata"]["labels"].clone();
        let selector = json!({"spec": {"source": {"selector": {"matchLabels": selector}}}});
        objects::with(plain, selector)
    };
    let claims = (0..200).map(|i| claim(format!("a{i}"), annotated(i)));
    let claims = claims.chain((0..30).map(|i| claim(format!("l{i}"), labelled(i))));
    let others = (0..30).map(snapshot).chain((0..30).map(group));
    let pods = (0..10).map(|i| pod(namespace, &format!("p{i}"), node, i));
    claims.chain(others).chain(pods).collect()
}

/// The memory limit of the controller in the manifest, in KiB.
fn limit_kib() -> u64 {
    let manifest = machine::root().join("deploy/base/controller.yaml");
    let manifest = std::fs::read_to_string(manifest).expect("the manifest");
    let (_, limits) = manifest.split_once("limits:\n").expect("limits");
    let (_, memory) = limits
        .split_once("memory: ")
        .expect("a limit of the memory");
    let (mib, _) = memory.split_once("Mi\n").expect("a limit in MiB");
    1024 * mib.parse::<u64>().expect("a number")
}

/// One user's objects are too large for a cache that keeps them. Another's claim is served.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_cannot_take_the_controllers_memory() {
    let controllers = "*,-liveness,-registrar,snapshot-controller";
    let rig = Rig::with_snapshots(FrontSpec::new("large", controllers)).await;
    rig.kill_controllers();
    let namespace = format!("{}-flood", rig.name);
    rig.objects.namespace(&namespace).await;
    let flood = flood(&namespace, &rig.nodes[0]);
    let places: Vec<Place> = flood.iter().map(Place::of_object).collect();
    let writes = futures::stream::iter(flood);
    writes
        .for_each_concurrent(AT_A_TIME, |object| async { drop(rig.create(object).await) })
        .await;

    rig.start_controllers();
    rig.bound_claim("data", json!({})).await;
    // Changes arrive through the watches.
    let changes = futures::stream::iter(&places[..60]);
    let change = json!({"metadata": {"annotations": {"changed": "yes"}}});
    changes
        .for_each_concurrent(AT_A_TIME, |at| async {
            drop(rig.objects.merge(at, change.clone()).await)
        })
        .await;
    rig.bound_claim("more", json!({})).await;
    let (peak, limit) = (child::memory_kib(rig.pid(), "VmHWM"), limit_kib());
    println!("the controllers took up to {peak} KiB of {limit}");
    assert!(peak < limit / 2, "{peak} KiB of {limit}");
    assert!(rig.log().contains("too large to be kept"), "{}", rig.log());

    let deletions = futures::stream::iter(&places);
    deletions
        .for_each_concurrent(AT_A_TIME, |at| rig.objects.delete(at))
        .await;
    rig.objects
        .delete(&Place::of("Namespace", "", &namespace))
        .await;
    rig.down().await;
}

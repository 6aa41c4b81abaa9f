//! The API server goes away, on the node with the leading driver.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hostloop_proto::csi;
use hostloop_test::PATIENCE;
use hostloop_test::client::Csi;
use hostloop_test::deployed::NAMESPACE;
use hostloop_test::requests;
use serde_json::{Value, json};

use crate::objects::{assert_text, handle_of, name, restarts};
use crate::site::Site;
use crate::space::{Space, staged_as, staging};
use crate::world::{World, check, until};

/// How long the API server is away.
fn outage() -> Duration {
    let set = std::env::var("E2E_OUTAGE").map(|s| s.parse().expect("seconds"));
    Duration::from_secs(set.unwrap_or(60))
}

/// Pods continue. Kubelet unmounts volumes, and the driver stages a volume on request. Afterwards
/// everything continues without a restart.
pub(crate) fn the_api_server_goes_away(world: &World) {
    let space = Space::new(world, "outage");
    let class = space.class("now", json!({}));
    for claim in ["stays", "goes", "staged"] {
        space.claim(claim, &class, json!({}));
    }
    let volumes = ["stays", "goes", "staged"].map(|claim| space.volume(claim));
    let script = "trap '' TERM; while :; do date >> /stays/log; sleep 0.1; done";
    space.run_script("stays", &["stays"], script);
    // The pod takes time to end: by then the API server is away.
    let grace = json!({"terminationGracePeriodSeconds": 30});
    space.run_with("goes", &["goes"], grace);
    // The node of the volumes that come and go meanwhile.
    let site = world.home(&volumes[2]);
    let driver = site.driver_ready();

    world.delete("Pod", &space.name, "goes");
    // Without the API server, kubelet would not hear of the deletion.
    space.event("goes", "Killing", "");
    let gone = Instant::now();
    world.cluster().stop("apiserver");
    let handles = volumes.each_ref().map(handle_of);
    assert_unmounted(world, handles[1]);
    world.wait(stage_and_unstage(&site, &volumes[2]));
    std::thread::sleep(outage().saturating_sub(gone.elapsed()));
    world.wait(stage_and_unstage(&site, &volumes[2]));
    world.cluster().start("apiserver");

    world.gone("Pod", &space.name, "goes");
    let now = site.driver_ready();
    assert_eq!(name(&now), name(&driver), "it is the same pod");
    let ended = restarts(&now) != restarts(&driver);
    assert!(!ended, "its container has ended: {}", now["status"]);
    assert_eq!(restarts(&space.pod_now("stays")), Some(0));
    // The controllers continue.
    let back = Instant::now();
    space.claim("new", &class, json!({}));
    space.volume("new");
    let seconds = back.elapsed().as_secs_f64();
    println!("    bound {seconds:.1} s after the API server was back");
    let driver = world.get("Pod", NAMESPACE, name(&now));
    assert_text(&driver, "/status/phase", "Running");
    space.end();
}

/// Kubelet unmounts the volume without the API server.
fn assert_unmounted(world: &World, handle: &str) {
    let staged = staged_as(handle);
    until("the unmounting", PATIENCE, || {
        let mut all: Vec<_> = world.sites().iter().flat_map(Site::mounts).collect();
        all.retain(|m| m.at.to_string_lossy().contains(&staged));
        check(all.is_empty(), || format!("{all:?}"))
    });
}

/// The calls that kubelet would make.
async fn stage_and_unstage(site: &Site<'_>, volume: &Value) {
    let csi = Csi::connect(&site.plugin_dir().join("csi.sock")).await;
    let id = handle_of(volume);
    // The driver uses the node's path, this process uses its own.
    let (at, staging) = (
        staging(site.world.cluster().kubelet_dir(), id),
        site.staging(id),
    );
    std::fs::create_dir_all(&staging).expect("the folder can be made");
    let attributes = &volume["spec"]["csi"]["volumeAttributes"];
    let volume_context: BTreeMap<String, String> =
        serde_json::from_value(attributes.clone()).unwrap_or_default();
    csi.ok(csi::NodeStageVolumeRequest {
        volume_context,
        ..requests::stage(id, &at)
    })
    .await;
    csi.ok(requests::unstage(id, at)).await;
    std::fs::remove_dir(&staging).expect("it is empty");
    std::fs::remove_dir(staging.parent().expect("it has one")).expect("it is empty");
}

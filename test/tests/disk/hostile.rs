//! Hostile requests to each RPC. Each is answered with its code, and changes nothing on disk or in
//! the kernel. No secret in a request reaches the log.

mod bench;
mod codes;
mod controller;
mod create;
mod group;
mod node;
mod state;
mod strings;

use self::bench::Bench;
use hostloop_proto::csi;
use hostloop_test::machine;

/// The number of requests of each RPC. A test that sends fewer lost a part of a table.
const SENT: &[(&str, usize)] = &[
    ("ControllerExpandVolume", 31),
    ("ControllerGetVolume", 25),
    ("ControllerGetVolumeHealth", 24),
    ("ControllerListVolumeHealth", 10),
    ("ControllerModifyVolume", 35),
    ("ControllerPublishVolume", 47),
    ("ControllerUnpublishVolume", 25),
    ("CreateSnapshot", 36),
    ("CreateVolume", 169),
    ("CreateVolumeGroupSnapshot", 36),
    ("DeleteSnapshot", 27),
    ("DeleteVolume", 28),
    ("DeleteVolumeGroupSnapshot", 51),
    ("GetCapacity", 20),
    ("GetSnapshot", 26),
    ("GetVolumeGroupSnapshot", 49),
    ("ListSnapshots", 56),
    ("ListVolumes", 10),
    ("NodeExpandVolume", 38),
    ("NodeGetVolumeHealth", 24),
    ("NodeGetVolumeStats", 34),
    ("NodePublishVolume", 124),
    ("NodeStageVolume", 60),
    ("NodeUnpublishVolume", 71),
    ("NodeUnstageVolume", 40),
    ("ValidateVolumeCapabilities", 25),
    ("get_metadata_allocated", 29),
    ("get_metadata_delta", 53),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hostile_requests_change_nothing() {
    machine::require();
    let mut bench = Bench::new().await;
    identity(&mut bench).await;
    create::create_volume(&mut bench).await;
    controller::volumes(&mut bench).await;
    controller::publish(&mut bench).await;
    controller::lists(&mut bench).await;
    controller::expand_and_modify(&mut bench).await;
    controller::capacity(&mut bench).await;
    group::snapshots(&mut bench).await;
    group::groups(&mut bench).await;
    group::metadata(&mut bench).await;
    node::paths(&mut bench).await;
    node::stage(&mut bench).await;
    node::publish(&mut bench).await;
    node::take_down(&mut bench).await;
    node::ask(&mut bench).await;
    node::inline(&mut bench).await;
    let sent = bench.finish().await;
    for (rpc, requests) in &sent {
        println!("{requests:5}  {rpc}");
    }
    println!("{} hostile requests", sent.values().sum::<usize>());
    let lost =
        |(rpc, all): &&(&str, usize)| sent.get(rpc).copied().unwrap_or_default() * 10 < all * 9;
    let lost: Vec<_> = SENT.iter().filter(lost).collect();
    assert!(
        lost.is_empty(),
        "more than a tenth of these requests was not sent: {lost:?}"
    );
}

/// The driver accepts odd, legal requests: long paths, large contexts and secrets, a symlink in
/// the middle of a path, names that read like paths.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn odd_requests_are_taken() {
    machine::require();
    let mut bench = Bench::new().await;
    create::odd_names(&mut bench).await;
    node::odd_paths(&mut bench).await;
    bench.finish().await;
}

/// These requests have no field to get wrong. They are answered in every state.
async fn identity(bench: &mut Bench) {
    bench.take("no field", csi::GetPluginInfoRequest {}).await;
    bench.take("no field", csi::ProbeRequest {}).await;
}

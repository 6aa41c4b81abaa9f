//! An API server that lacks every optional kind: VolumeAttributesClasses, as before Kubernetes
//! 1.34, snapshots and groups.

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options};
use hostloop_test::front::FrontSpec;
use hostloop_test::front::fields::{handle, text};
use hostloop_test::front::objects::{Place, sized};
use hostloop_test::front::wait::until;
use serde_json::json;

/// The kind that an older API server does not have.
const MISSING: &str = "storage.k8s.io/v1/volumeattributesclasses";

/// Controllers that use every optional kind. One process serves the whole cluster.
const CONTROLLERS: &str = "*,snapshot-controller,-registrar,-liveness";

/// One line of the log says what is off. Everything else works, and a kind that appears is noticed
/// without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_that_an_older_server_lacks_stop_nothing_else() {
    let options = Options {
        scheduler: true,
        without: Some(MISSING),
        ..Options::default()
    };
    let cluster = tokio::task::block_in_place(|| Cluster::up(&options));
    let storage = cluster.kubectl(&["get", "--raw", "/apis/storage.k8s.io/v1"]);
    assert!(!storage.contains("volumeattributesclasses"), "{storage}");

    let spec = FrontSpec::new("older", CONTROLLERS);
    let spec = spec.args(&["--ensure-snapshot-crds=false", "--leader-election=false"]);
    let front = spec.up(cluster.kubeconfig()).await;
    front.claim("data", json!({})).await;
    let (_, volume) = front.bound("data").await;
    front
        .objects
        .merge(&front.claim_at("data"), sized("2Gi"))
        .await;
    let at = Place::of_object(&volume);
    let grown = |volume: &serde_json::Value| text(&volume["spec"]["capacity"]["storage"]) == "2Gi";
    front.until(&at, "larger", grown).await;
    let made = front
        .driver
        .volume(handle(&volume))
        .expect("the driver has it");
    assert_eq!(made.capacity, 2 << 30);

    let log = front.log();
    let off: Vec<_> = log
        .lines()
        .filter(|line| line.contains("the API server lacks"))
        .collect();
    let [off] = off[..] else {
        panic!("one line: {off:#?}")
    };
    for kind in [
        "volumeattributesclasses",
        "volumesnapshots",
        "volumegroupsnapshots",
    ] {
        assert!(off.contains(kind), "{off}");
    }
    assert!(!log.contains("watching failed"), "{log}");

    cluster.create_crds();
    // In one line, or in two if the process asks between the two definitions.
    let on = || async {
        let log = front.log();
        let names = log
            .lines()
            .filter_map(|line| line.split_once("has their kinds by now: "));
        let names: Vec<_> = names
            .flat_map(|(_, names)| names.split(", "))
            .map(str::trim)
            .collect();
        ["snapshots", "group snapshots"]
            .iter()
            .all(|name| names.contains(name))
            .then_some(())
    };
    until(PATIENCE, on)
        .await
        .expect("the new kinds are noticed");
    front.down().await;
}

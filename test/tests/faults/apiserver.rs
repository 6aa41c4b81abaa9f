//! The API server or etcd goes away and returns in the middle of a storm.

use std::time::Duration;

use hostloop_test::cluster::Cluster;

use crate::{alone, claims, cluster, ends, part_of, patience, spec, storms, up};

/// Kills a part and starts it again after `time`.
async fn away(part: &'static str, time: Duration) {
    let cluster = cluster().await;
    part_of(cluster, Cluster::kill, part).await;
    tokio::time::sleep(time).await;
    part_of(cluster, Cluster::start, part).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_survives_restarts_of_the_api_server() {
    let _turn = alone().await;
    let fleet = up(spec("restarts", 5)).await;
    let restarts = async {
        let pause = Duration::from_secs(2);
        tokio::time::sleep(pause).await;
        away("apiserver", pause).await;
        tokio::time::sleep(pause).await;
        away("etcd", pause).await;
        tokio::time::sleep(pause).await;
        away("apiserver", 3 * pause).await;
    };
    tokio::join!(storms(&fleet, claims()), restarts);
    fleet.assert_running();
    fleet.each_once(patience()).await;
    let restart = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        away("apiserver", Duration::from_secs(2)).await;
    };
    tokio::join!(fleet.clear(patience()), restart);
    ends(fleet, 0).await;
}

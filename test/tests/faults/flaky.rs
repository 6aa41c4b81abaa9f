//! An API server with a mishap in one of twenty calls: an error, a delay, or execution without an
//! answer. Its watches break off.

use hostloop_test::fleet::proxy::{Mishap, Proxy};

use crate::{beside_others, claims, cluster, ends, patience, spec, storms, up};

#[tokio::test(flavor = "multi_thread")]
async fn one_call_in_twenty_fails() {
    let _turn = beside_others().await;
    let cluster = cluster().await;
    let proxy = Proxy::start(&cluster.kubeconfig(), 20, 5, 30).await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let kubeconfig = proxy.kubeconfig(&cluster.kubeconfig(), dir.path());
    let fleet = up(spec("flaky", 5).kubeconfigs(vec![kubeconfig])).await;
    storms(&fleet, claims()).await;
    fleet.each_once(patience()).await;
    fleet.clear(patience()).await;
    let counts = proxy.counts();
    println!("calls through the proxy: {counts:?}");
    for mishap in [
        Mishap::Failed,
        Mishap::TooMany,
        Mishap::Broken,
        Mishap::Unanswered,
        Mishap::Slow,
        Mishap::Cut,
    ] {
        let happened = counts.contains_key(&Some(mishap));
        assert!(happened, "{mishap:?} never happened");
    }
    ends(fleet, 0).await;
}

//! From the last release to this version and back, on a cluster of two nodes, while pods write and
//! claims are made and deleted.
//!
//! The last release is built from its commit (`test/upgrade/last-release`) and deployed with its
//! own manifests. `scripts/test --only upgrade` builds it.
//!
//! - On each node a pod writes to a volume of each kind and syncs each write. It ends at the first
//!   error. After each change of the version its container is the same and no write is missing.
//! - Volumes and snapshots with known content are made by each version and read by the other one. A
//!   pod has them mounted during the change, so one version unmounts what the other one mounted.
//! - Claims that are made during the change are bound, and pods run with some of them. Some claims
//!   are deleted again.
//! - `hostloop fsck` finds nothing after each change. At the end, nothing is left.

mod flow;
mod kept;
mod site;
mod volume;
mod writer;

use std::path::PathBuf;

use hostloop_test::cluster::Stock;
use hostloop_test::machine;

use flow::Flow;
use kept::Kept;
use site::{Release, Site};
use writer::Writer;

#[tokio::test(flavor = "multi_thread")]
async fn from_the_last_release_to_this_version_and_back() {
    machine::require();
    let (last, this) = (Release::last(), Release::this());
    let site = Site::up().await;
    site.install(&last).await;
    site.create_classes().await;
    let pools = site.pools();
    let stock = Stock::take(
        &site.cluster,
        &pools.iter().map(PathBuf::as_path).collect::<Vec<_>>(),
    );
    let mut writers = [Writer::start(&site, 1).await, Writer::start(&site, 2).await];
    let by_last = Kept::make(&site, last.name, 1).await;

    change_to(&this, &site, &mut writers, &by_last).await;
    by_last.unmount(&site);
    let mut sums = by_last.assert_readable(&site, this.name).await;
    let by_this = Kept::make(&site, this.name, 2).await;

    change_to(&last, &site, &mut writers, &by_this).await;
    by_this.unmount(&site);
    for kept in [&by_last, &by_this] {
        sums += kept.assert_readable(&site, last.name).await;
    }
    println!("{sums} volumes and restored snapshots had the content of their moment");

    site.delete_everything();
    stock.assert_nothing_left(&site.cluster).await;
    site.remove(&last);
}

/// Changes to another version, and checks that nothing was disturbed by it.
async fn change_to(release: &Release, site: &Site, writers: &mut [Writer], kept: &Kept) {
    let flow = Flow::start(site, release.name);
    site.install(release).await;
    let made = flow.end(site).await;
    let mut lines = 0;
    let mut pause: f64 = 0.0;
    for writer in writers {
        let log = writer.assert_undisturbed(site).await;
        lines += log.lines;
        pause = pause.max(log.longest_pause);
    }
    kept.assert_undisturbed(site).await;
    site.assert_sound().await;
    println!(
        "to {}: {lines} writes without an error, the longest pause {pause:.1} s; {} claims bound, \
         {} pods ran with theirs, {} claims deleted at once",
        release.name, made.bound, made.ran, made.deleted
    );
}

//! NodePublishVolume of one volume while a large copy of another runs on a pool without reflinks,
//! against the same on an idle driver: no lock is held across the copy.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop_proto::csi;
use hostloop_test::client::{Csi, new_volume};
use hostloop_test::driver::DriverSpec;
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind};
use hostloop_test::requests::{id_of, of_volume};
use hostloop_test::scratch::Scratch;

use crate::calls::{create, delete, publish, stage, unpublish, unstage};
use crate::measure::{Aim, Figure, median, timed_async};
use crate::runtime::Runtime;

/// Data to copy: seconds of work, because the copy gives way to the publications.
const DATA: usize = 256 << 20;
/// Number of copies. Before each, the idle driver serves as many publications.
const RUNS: usize = 3;
const IDLE: usize = 30;

pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Ext4, 24 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    runtime.block_on(async {
        let csi = driver.csi().await;
        let large = create(&csi, "large", 4 * GIB).await;
        let staging = scratch.dir("staging-large");
        stage(&csi, &large, &staging).await;
        std::fs::write(staging.join("data"), vec![0x5a; DATA]).expect("the volume takes data");
        unstage(&csi, &large, &staging).await;

        let small = create(&csi, "small", 64 * MIB).await;
        let staging = scratch.dir("staging-small");
        stage(&csi, &small, &staging).await;
        let target = scratch.path().join("target");

        let (mut idle, mut during, mut published) = (Vec::new(), Vec::new(), 0);
        for _ in 0..RUNS {
            let mut samples = Vec::new();
            for _ in 0..IDLE {
                samples.push(publish_once(&csi, &small, &staging, &target).await);
            }
            idle.push(median(&samples));
            let done = AtomicBool::new(false);
            let copy = async {
                let id = clone(&csi, &large).await;
                done.store(true, Ordering::Relaxed);
                id
            };
            let publishing = async {
                let mut samples = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    samples.push(publish_once(&csi, &small, &staging, &target).await);
                }
                samples
            };
            let (copied, samples) = tokio::join!(copy, publishing);
            published += samples.len();
            during.push(median(&samples));
            delete(&csi, &copied).await;
        }
        unstage(&csi, &small, &staging).await;
        for id in [&large, &small] {
            delete(&csi, id).await;
        }
        let copied = DATA >> 20;
        let what = format!("publish while {copied} MiB are copied ({published} times)");
        // A lock held across the copy would cost seconds.
        let aim = Aim::LessThan(500.0);
        vec![Figure::beside(what, during, idle, "ms", aim)]
    })
}

async fn clone(csi: &Csi, source: &str) -> String {
    let request = csi::CreateVolumeRequest {
        volume_content_source: of_volume(source),
        ..new_volume("copy", 4 * GIB)
    };
    id_of(csi.ok(request).await)
}

async fn publish_once(csi: &Csi, id: &str, staging: &Path, target: &Path) -> f64 {
    let elapsed = timed_async(publish(csi, id, staging, target)).await;
    unpublish(csi, id, target).await;
    elapsed
}

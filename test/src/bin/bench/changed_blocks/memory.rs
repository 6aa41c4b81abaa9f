//! The driver's memory while it lists a million ranges of a volume of 1 TiB.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::child;
use hostloop_test::client::{new_volume, raw_block};
use hostloop_test::driver::DriverSpec;
use hostloop_test::machine::{self, text};
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind};
use hostloop_test::requests::{self, id_of};
use hostloop_test::scratch::Scratch;

use super::{BLOCK, ROUNDS, take};
use crate::calls::delete;
use crate::measure::{Aim, Figure};
use crate::runtime::Runtime;

/// The filesystem of the driver's files. It is sparse.
const POOL: u64 = 1536 * GIB;
const VOLUME: u64 = 1024 * GIB;
/// Each part of the volume begins with a block of data.
const PART: u64 = MIB;
const RANGES: usize = (VOLUME / PART) as usize;

pub(super) fn figure(runtime: &Runtime) -> Figure {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, POOL);
    let driver = DriverSpec::new(&scratch, &[&pool]).overcommitted().start();
    let mut growths = Vec::new();
    runtime.block_on(async {
        let csi = driver.csi().await;
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![raw_block(Mode::SingleNodeWriter)],
            ..new_volume("volume", VOLUME)
        };
        let volume = id_of(csi.ok(request).await);
        let base = take(&csi, "base", &volume, &[]).await;
        sow(&pool.root().join("volumes").join(&volume).join("image"));
        let target = take(&csi, "target", &volume, &[]).await;
        let allocated = csi::GetMetadataAllocatedRequest {
            snapshot_id: target.clone(),
            ..Default::default()
        };
        let changed = csi::GetMetadataDeltaRequest {
            base_snapshot_id: base.clone(),
            target_snapshot_id: target.clone(),
            ..Default::default()
        };
        for _ in 0..ROUNDS {
            let before = peak_from_now_on(driver.pid());
            let listed = csi.ok(allocated.clone()).await;
            let listed = listed.iter().map(|answer| answer.block_metadata.len());
            assert_eq!(listed.sum::<usize>(), RANGES, "allocated ranges");
            let listed = csi.ok(changed.clone()).await;
            let listed = listed.iter().map(|answer| answer.block_metadata.len());
            assert_eq!(listed.sum::<usize>(), RANGES, "changed ranges");
            let peak = child::memory_kib(driver.pid(), "VmHWM");
            growths.push(peak.saturating_sub(before) as f64 / 1024.0);
        }
        for snapshot in [&base, &target] {
            csi.ok(requests::delete_snapshot(snapshot)).await;
        }
        delete(&csi, &volume).await;
    });
    Figure::alone(
        "memory for a million ranges of 1 TiB, beyond rest",
        growths,
        "MiB",
        Aim::LessThan(8.0),
    )
}

/// Writes one block, and shares it with the beginning of each other part: half of the image becomes
/// the other half, again and again.
fn sow(image: &Path) {
    let file = File::options().write(true).open(image);
    let file = file.expect("the volume has an image");
    let written = file.write_all_at(&[0x5a; BLOCK], 0);
    written
        .and_then(|()| file.sync_all())
        .expect("the image takes data");
    let doublings = (0..RANGES.ilog2()).map(|times| PART << times);
    let commands: Vec<String> = doublings
        .map(|size| format!("reflink {} 0 {size} {size}", text(image)))
        .collect();
    let mut words: Vec<&str> = Vec::new();
    for command in &commands {
        words.extend(["-c", command.as_str()]);
    }
    words.push(text(image));
    machine::run("xfs_io", &words);
}

/// Makes the process's resident memory the most that it has had. Returns it in KiB.
fn peak_from_now_on(pid: u32) -> u64 {
    let reset = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
    reset.expect("the peak of a process can be reset");
    child::memory_kib(pid, "VmHWM")
}

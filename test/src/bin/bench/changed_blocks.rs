//! A backup of what has changed in 1 % of a sparse volume since a deleted base, against one that
//! reads all of the volume, as without a list of the changed blocks.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::client::{Csi, map, new_volume, raw_block};
use hostloop_test::driver::DriverSpec;
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind};
use hostloop_test::requests::{self, id_of};
use hostloop_test::scratch::Scratch;

use crate::calls::delete;
use crate::measure::{Aim, Figure, millis};
use crate::process;
use crate::runtime::Runtime;

const ROUNDS: usize = 3;
/// The size of the volume, and what is written to it before each snapshot: pieces that lie apart.
const VOLUME: u64 = 100 * GIB;
const PIECE: u64 = 4 * MIB;
const PIECES: u64 = 256;
/// The size of a read. Direct I/O needs memory at a multiple of the block.
const READ: u64 = MIB;
const BLOCK: usize = 4096;

/// Milliseconds and MiB of each backup.
#[derive(Default)]
struct Runs {
    times: Vec<f64>,
    bytes: Vec<f64>,
}

pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    [PoolKind::Xfs, PoolKind::Btrfs]
        .into_iter()
        .flat_map(|kind| of_pool(runtime, kind))
        .collect()
}

fn of_pool(runtime: &Runtime, kind: PoolKind) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, kind, 250 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let (mut changed, mut all) = (Runs::default(), Runs::default());
    runtime.block_on(async {
        let csi = driver.csi().await;
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![raw_block(Mode::SingleNodeWriter)],
            ..new_volume("volume", VOLUME)
        };
        let volume = id_of(csi.ok(request).await);
        let image = pool.root().join("volumes").join(&volume).join("image");
        scatter(&image, 0);
        let base = take(&csi, "base", &volume).await;
        csi.ok(requests::delete_snapshot(&base)).await;
        scatter(&image, PIECE / 2);
        let target = take(&csi, "target", &volume).await;
        let image = pool.root().join("snapshots").join(&target).join("image");
        for _ in 0..ROUNDS {
            let (before, start) = (process::read_mib(driver.pid()), Instant::now());
            let listed = read(&image, &delta(&csi, &base, &target).await);
            changed.times.push(millis(start.elapsed()));
            let by_driver = process::read_mib(driver.pid()) - before;
            changed.bytes.push(listed + by_driver);
            let start = Instant::now();
            all.bytes.push(read(&image, &[(0, VOLUME)]));
            all.times.push(millis(start.elapsed()));
        }
        csi.ok(requests::delete_snapshot(&target)).await;
        delete(&csi, &volume).await;
    });
    let what = |of: &str| {
        let name = kind.name();
        format!("{of} of a backup of 1 % of 100 GiB, {name}, against all")
    };
    vec![
        Figure::beside(what("time"), changed.times, all.times, "ms", Aim::None),
        Figure::beside(
            what("reads"),
            changed.bytes,
            all.bytes,
            "MiB",
            Aim::RatioAtMost(0.02),
        ),
    ]
}

/// Writes pieces all over an image, each this far from the first byte of its part.
fn scatter(image: &Path, shift: u64) {
    let image = File::options()
        .write(true)
        .open(image)
        .expect("the volume has an image");
    let piece = vec![0x5a_u8; PIECE as usize];
    for number in 0..PIECES {
        let offset = number * (VOLUME / PIECES) + shift;
        image
            .write_all_at(&piece, offset)
            .expect("the image takes data");
    }
    image.sync_all().expect("the image can be synced");
}

/// Takes a snapshot that keeps its image when it is deleted.
async fn take(csi: &Csi, name: &str, volume: &str) -> String {
    let request = csi::CreateSnapshotRequest {
        parameters: map(&[("keepDeletedBases", "1")]),
        ..requests::snapshot(name, volume)
    };
    let made = csi.ok(request).await.snapshot;
    made.expect("CreateSnapshot answers a snapshot").snapshot_id
}

/// The ranges that may differ.
async fn delta(csi: &Csi, base: &str, target: &str) -> Vec<(u64, u64)> {
    let answers = csi
        .ok(csi::GetMetadataDeltaRequest {
            base_snapshot_id: base.to_owned(),
            target_snapshot_id: target.to_owned(),
            ..Default::default()
        })
        .await;
    let blocks = answers
        .into_iter()
        .flat_map(|answer| answer.block_metadata)
        .map(|block| (block.byte_offset as u64, block.size_bytes as u64));
    blocks.collect()
}

/// Reads these ranges of an image, past the page cache, and returns their MiB.
fn read(image: &Path, ranges: &[(u64, u64)]) -> f64 {
    let image = File::options()
        .read(true)
        .custom_flags(nix::libc::O_DIRECT)
        .open(image)
        .expect("the snapshot has an image");
    let mut memory = vec![0_u8; READ as usize + BLOCK];
    let aligned = memory.as_ptr().align_offset(BLOCK);
    let mut bytes: u64 = 0;
    for (offset, size) in ranges {
        let (mut at, end) = (*offset, offset + size);
        while at < end {
            let length = (end - at).min(READ) as usize;
            image
                .read_exact_at(&mut memory[aligned..aligned + length], at)
                .expect("the image can be read");
            at += length as u64;
        }
        bytes += size;
    }
    bytes as f64 / MIB as f64
}

//! fio on a mounted volume, against a loop device and mount made by hand with the same settings.

use std::path::Path;

use hostloop_proto::csi;
use hostloop_test::client::{map, new_volume};
use hostloop_test::driver::DriverSpec;
use hostloop_test::machine::{run, text};
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;

use crate::calls::{delete, stage, unstage};
use crate::measure::{Aim, Figure};
use crate::runtime::Runtime;
use crate::stage::{losetup, undo};

/// Of nine runs, the smallest and the largest are not part of the spread.
const ROUNDS: usize = 9;

/// Size of a volume, and of the file fio works on.
const VOLUME: u64 = GIB;
const FILE: u64 = 512 * MIB;

/// fio's name for a pattern, block size, queue depth.
const PATTERNS: [(&str, &str, u32); 4] = [
    ("randwrite", "4k", 16),
    ("randread", "4k", 16),
    ("write", "1m", 4),
    ("read", "1m", 4),
];

pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 8 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let staging = scratch.dir("staging");
    let id = runtime.block_on(async {
        let csi = driver.csi().await;
        // Both sides are thick, because allocation is not measured here.
        let request = csi::CreateVolumeRequest {
            parameters: map(&[("provisioning", "thick")]),
            ..new_volume("fio", VOLUME)
        };
        let made = csi
            .ok(request)
            .await
            .volume
            .expect("CreateVolume answers a volume");
        stage(&csi, &made.volume_id, &staging).await;
        made.volume_id
    });
    let hand = ByHand::new(pool.root(), scratch.dir("by-hand").as_path());
    let figures = PATTERNS
        .iter()
        .map(|pattern| compare(pattern, &staging, &hand.at))
        .collect();
    drop(hand);
    runtime.block_on(async {
        let csi = driver.csi().await;
        unstage(&csi, &id, &staging).await;
        delete(&csi, &id).await;
    });
    figures
}

fn compare(pattern: &(&'static str, &'static str, u32), ours: &Path, floor: &Path) -> Figure {
    let (mut ours_iops, mut floor_iops) = (Vec::new(), Vec::new());
    // The first round lays the file out and warms both up. It is not counted.
    for round in 0..=ROUNDS {
        // The sides take turns at going first, so that a drift affects both.
        let (a, b) = match round % 2 {
            0 => (fio(ours, pattern), fio(floor, pattern)),
            _ => {
                let b = fio(floor, pattern);
                (fio(ours, pattern), b)
            }
        };
        if round > 0 {
            ours_iops.push(a);
            floor_iops.push(b);
        }
    }
    let (rw, block, depth) = pattern;
    let what = format!("fio {rw} {block}, depth {depth}, against a loop by hand");
    let aim = Aim::RatioAtLeast(0.97);
    Figure::beside(what, ours_iops, floor_iops, "IOPS", aim)
}

fn fio(dir: &Path, (rw, block, depth): &(&str, &str, u32)) -> f64 {
    let output = run(
        "fio",
        &[
            "--name=bench",
            "--output-format=json",
            "--ioengine=libaio",
            "--direct=1",
            "--time_based",
            "--runtime=1",
            &format!("--filename={}/file", text(dir)),
            &format!("--size={FILE}"),
            &format!("--rw={rw}"),
            &format!("--bs={block}"),
            &format!("--iodepth={depth}"),
        ],
    );
    let json: serde_json::Value = serde_json::from_str(&output).expect("fio prints JSON");
    let side = if rw.ends_with("write") {
        "write"
    } else {
        "read"
    };
    json["jobs"][0][side]["iops"]
        .as_f64()
        .expect("fio says how many")
}

/// A loop device and a mount made by hand as the driver makes them. Dropping it undoes both.
struct ByHand {
    image: std::path::PathBuf,
    device: String,
    at: std::path::PathBuf,
}

impl ByHand {
    fn new(pool: &Path, at: &Path) -> ByHand {
        let image = pool.parent().expect("a pool has a parent").join("by-hand");
        run(
            "fallocate",
            &["--length", &VOLUME.to_string(), text(&image)],
        );
        let device = losetup(&image);
        run("mkfs.ext4", &["-q", "-F", "-E", "nodiscard", &device]);
        run("mount", &["-t", "ext4", &device, text(at)]);
        ByHand {
            image,
            device,
            at: at.to_path_buf(),
        }
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        undo(&self.at, &self.device, &self.image);
    }
}

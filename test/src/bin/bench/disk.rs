//! fio on a mounted volume, against a loop device and mount made by hand with the same settings. And
//! against a volume of a driver without `--enable-faults`, if neither has a fault.

use std::path::Path;

use hostloop_proto::csi;
use hostloop_test::client::{Csi, map, new_volume};
use hostloop_test::driver::DriverSpec;
use hostloop_test::machine::{run, text};
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind};
use hostloop_test::requests::id_of;
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
    let id = runtime.block_on(async { mounted(&driver.csi().await, "fio", &staging).await });
    let hand = ByHand::new(pool.root(), scratch.dir("by-hand").as_path());
    let figures = PATTERNS
        .iter()
        .map(|pattern| {
            let what = "against a loop by hand";
            compare(what, pattern, &staging, &hand.at, 0.97)
        })
        .collect();
    drop(hand);
    runtime.block_on(async { removed(&driver.csi().await, &id, &staging).await });
    figures
}

/// Volumes without a fault, of a driver that allows faults against one that does not. Both are in one
/// pool, so that its blocks make no difference.
pub(crate) fn with_faults_allowed(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 8 * GIB);
    let [without, with] = ["without", "with"].map(|name| scratch.dir(name));
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let first = runtime.block_on(async { mounted(&driver.csi().await, "first", &without).await });
    driver.stop();
    let spec = DriverSpec::new(&scratch, &[&pool]);
    let driver = spec.args(["--enable-faults"]).start();
    let second = runtime.block_on(async { mounted(&driver.csi().await, "second", &with).await });
    let figures = PATTERNS
        .iter()
        .map(|pattern| {
            let what = "with --enable-faults";
            compare(what, pattern, &with, &without, 0.98)
        })
        .collect();
    runtime.block_on(async {
        let csi = driver.csi().await;
        removed(&csi, &second, &with).await;
        removed(&csi, &first, &without).await;
    });
    figures
}

/// Creates a volume and mounts it there. Both sides of a figure are thick, because allocation is not
/// measured here.
async fn mounted(csi: &Csi, name: &str, staging: &Path) -> String {
    let request = csi::CreateVolumeRequest {
        parameters: map(&[("provisioning", "thick")]),
        ..new_volume(name, VOLUME)
    };
    let id = id_of(csi.ok(request).await);
    stage(csi, &id, staging).await;
    id
}

/// Unmounts a volume, and deletes it.
async fn removed(csi: &Csi, id: &str, staging: &Path) {
    unstage(csi, id, staging).await;
    delete(csi, id).await;
}

/// Lets fio work on both sides. `least`: the ratio that ours is to reach.
fn compare(
    what: &str,
    pattern: &(&'static str, &'static str, u32),
    ours: &Path,
    floor: &Path,
    least: f64,
) -> Figure {
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
    let what = format!("fio {rw} {block}, depth {depth}, {what}");
    let aim = Aim::RatioAtLeast(least);
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

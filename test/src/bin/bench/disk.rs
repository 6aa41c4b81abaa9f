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
pub(crate) const FILE: u64 = 512 * MIB;

const JOBS: [Job; 4] = [
    Job::direct("randwrite", "4k", 16),
    Job::direct("randread", "4k", 16),
    Job::direct("write", "1m", 4),
    Job::direct("read", "1m", 4),
];

/// What fio does with its file.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    /// fio's name for the pattern.
    pub(crate) pattern: &'static str,
    /// The size of a block.
    pub(crate) block: &'static str,
    /// The most operations under way.
    pub(crate) depth: u32,
    /// True past the page cache.
    pub(crate) direct: bool,
    pub(crate) end: End,
}

/// When fio ends.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// After these seconds, of which fio counts those after the ramp.
    Time { ramp: u64, counted: u64 },
    /// After so many written bytes and their fsync: its time counts.
    Synced(u64),
}

/// What fio has done in a second.
pub(crate) struct Rates {
    pub(crate) operations: f64,
    pub(crate) bytes: f64,
}

impl Job {
    /// A second of direct I/O.
    pub(crate) const fn direct(pattern: &'static str, block: &'static str, depth: u32) -> Job {
        Job {
            pattern,
            block,
            depth,
            direct: true,
            end: End::Time {
                ramp: 0,
                counted: 1,
            },
        }
    }
}

pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 8 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let staging = scratch.dir("staging");
    let id = runtime.block_on(async { mounted(&driver.csi().await, "fio", &[], &staging).await });
    let hand = ByHand::new(pool.root(), scratch.dir("by-hand").as_path());
    let figures = JOBS
        .iter()
        .map(|job| {
            let what = "against a loop by hand";
            compare(what, job, &[(&staging, &hand.at)], 0.97)
        })
        .collect();
    drop(hand);
    runtime.block_on(async { removed(&driver.csi().await, &id, &staging).await });
    figures
}

/// Volumes without a fault, of a driver that allows faults against one that does not. All are in one
/// pool, so that its blocks make no difference. Where on the disk a volume is does, so each kind has one
/// of the two in the middle and one at an end.
pub(crate) fn with_faults_allowed(runtime: &Runtime) -> Vec<Figure> {
    /// Where the volumes of both kinds are.
    const ORDER: [(&str, bool); 4] = [
        ("first-without", false),
        ("first-with", true),
        ("second-with", true),
        ("second-without", false),
    ];
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 8 * GIB);
    let start = |is_allowed: bool| {
        let spec = DriverSpec::new(&scratch, &[&pool]);
        let flag = is_allowed.then_some("--enable-faults");
        spec.args(flag).start()
    };
    let volumes = ORDER.map(|(name, is_allowed)| {
        let (driver, at) = (start(is_allowed), scratch.dir(name));
        let id = runtime.block_on(async { mounted(&driver.csi().await, name, &[], &at).await });
        driver.stop();
        (id, at)
    });
    let driver = start(true);
    let [first_without, first_with, second_with, second_without] =
        volumes.each_ref().map(|(_, at)| at.as_path());
    let pairs = [(first_with, first_without), (second_with, second_without)];
    let figures = JOBS
        .iter()
        .map(|job| compare("with --enable-faults", job, &pairs, 0.98))
        .collect();
    runtime.block_on(async {
        let csi = driver.csi().await;
        for (id, at) in &volumes {
            removed(&csi, id, at).await;
        }
    });
    figures
}

/// Creates a volume with these parameters, and mounts it there. It is thick, because allocation is not
/// measured here.
pub(crate) async fn mounted(
    csi: &Csi,
    name: &str,
    parameters: &[(&str, &str)],
    staging: &Path,
) -> String {
    let request = csi::CreateVolumeRequest {
        parameters: map(&[parameters, &[("provisioning", "thick")]].concat()),
        ..new_volume(name, VOLUME)
    };
    let id = id_of(csi.ok(request).await);
    stage(csi, &id, staging).await;
    id
}

/// Unmounts a volume, and deletes it.
pub(crate) async fn removed(csi: &Csi, id: &str, staging: &Path) {
    unstage(csi, id, staging).await;
    delete(csi, id).await;
}

/// Lets fio work on both sides of each pair in turn, ours and the floor. `least`: the ratio that ours is
/// to reach.
fn compare(what: &str, job: &Job, pairs: &[(&Path, &Path)], least: f64) -> Figure {
    let (mut ours_iops, mut floor_iops) = (Vec::new(), Vec::new());
    for round in 0..pairs.len() + ROUNDS {
        let (ours, floor) = pairs[round % pairs.len()];
        // The sides take turns at going first, so that a drift affects both.
        let (a, b) = match round / pairs.len() % 2 {
            0 => (fio(ours, job), fio(floor, job)),
            _ => {
                let b = fio(floor, job);
                (fio(ours, job), b)
            }
        };
        // The first round of a pair lays its files out and warms both up. It is not counted.
        if round >= pairs.len() {
            ours_iops.push(a.operations);
            floor_iops.push(b.operations);
        }
    }
    let Job {
        pattern,
        block,
        depth,
        ..
    } = job;
    let what = format!("fio {pattern} {block}, depth {depth}, {what}");
    let aim = Aim::RatioAtLeast(least);
    Figure::beside(what, ours_iops, floor_iops, "IOPS", aim)
}

/// Runs fio on its file in this directory. First, fio drops the file from the page cache.
pub(crate) fn fio(dir: &Path, job: &Job) -> Rates {
    let Job {
        pattern,
        block,
        depth,
        direct,
        end,
    } = job;
    let mut args = vec![
        "--name=bench".to_owned(),
        "--output-format=json".to_owned(),
        "--ioengine=libaio".to_owned(),
        "--invalidate=1".to_owned(),
        format!("--direct={}", u8::from(*direct)),
        format!("--filename={}/file", text(dir)),
        format!("--size={FILE}"),
        format!("--rw={pattern}"),
        format!("--bs={block}"),
        format!("--iodepth={depth}"),
    ];
    match end {
        End::Time { ramp, counted } => args.extend([
            "--time_based".to_owned(),
            format!("--ramp_time={ramp}"),
            format!("--runtime={counted}"),
        ]),
        End::Synced(bytes) => {
            args.extend([format!("--io_size={bytes}"), "--end_fsync=1".to_owned()]);
        }
    }
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let output = run("fio", &args);
    let json: serde_json::Value = serde_json::from_str(&output).expect("fio prints JSON");
    let side = if pattern.ends_with("write") {
        "write"
    } else {
        "read"
    };
    let done = &json["jobs"][0][side];
    let [operations, bytes] =
        ["iops", "bw_bytes"].map(|rate| done[rate].as_f64().expect("fio says how many"));
    Rates { operations, bytes }
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

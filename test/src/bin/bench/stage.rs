//! NodeStageVolume: the first one of an ext4 volume against losetup, mkfs.ext4 and mount by hand on
//! a file beside it. By filesystem and size: the first one against the next, and CreateVolume,
//! which makes the filesystem, against mkfs by hand.

use std::path::{Path, PathBuf};
use std::time::Instant;

use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::machine::{run, text};
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;

use crate::calls::{create, create_as, delete, stage, stage_as, unstage};
use crate::measure::{Aim, Figure, millis, timed, timed_async};
use crate::runtime::Runtime;

const ROUNDS: usize = 15;

/// Rounds of each filesystem and size.
const ROUNDS_OF_SIZES: usize = 9;

const SIZES: [(&str, u64); 3] = [
    ("1 GiB", GIB),
    ("100 GiB", 100 * GIB),
    ("1 TiB", 1024 * GIB),
];

pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let mut figures = vec![against_by_hand(runtime)];
    figures.extend(first_against_next(runtime));
    figures
}

fn first_against_next(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 2048 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).overcommitted().start();
    let staging = scratch.dir("staging");
    let mut figures = Vec::new();
    for fs in ["ext4", "xfs", "btrfs"] {
        for (size, bytes) in SIZES {
            let (mut first, mut next) = (Vec::new(), Vec::new());
            let (mut created, mut mkfs) = (Vec::new(), Vec::new());
            for round in 0..ROUNDS_OF_SIZES {
                runtime.block_on(async {
                    let csi = driver.csi().await;
                    let begun = Instant::now();
                    let id = create_as(&csi, &format!("{fs}-{bytes}-{round}"), bytes, fs).await;
                    created.push(millis(begun.elapsed()));
                    for runs in [&mut first, &mut next] {
                        runs.push(timed_async(stage_as(&csi, &id, &staging, fs)).await);
                        unstage(&csi, &id, &staging).await;
                    }
                    delete(&csi, &id).await;
                });
                mkfs.push(mkfs_by_hand(pool.root(), fs, bytes));
            }
            let what = format!("first stage of {size} {fs}, against the next");
            let aim = Aim::RatioAtMost(1.5);
            figures.push(Figure::beside(what, first, next, "ms", aim));
            let what = format!("create of {size} {fs}, against mkfs by hand");
            figures.push(Figure::beside(what, created, mkfs, "ms", Aim::None));
        }
    }
    figures
}

/// Runs mkfs with the driver's options, on a device without data.
fn mkfs_by_hand(pool: &Path, fs: &str, bytes: u64) -> f64 {
    let image = image_beside(pool, "by-hand", bytes);
    let device = losetup(&image);
    let options: &[&str] = match fs {
        "ext4" => &["-q", "-F", "-b", "4096", "-E", "nodiscard"],
        _ => &["-q", "-K"],
    };
    let program = format!("mkfs.{fs}");
    let elapsed = timed(|| drop(run(&program, &[options, &[&device]].concat())));
    run("losetup", &["--detach", &device]);
    std::fs::remove_file(image).expect("the image can be removed");
    elapsed
}

/// A sparse file beside the pool's own folders, on the same filesystem.
pub(crate) fn image_beside(pool: &Path, name: &str, bytes: u64) -> PathBuf {
    let image = pool.parent().expect("a pool has a parent").join(name);
    let made = std::fs::File::create(&image).and_then(|file| file.set_len(bytes));
    made.expect("an image can be made");
    image
}

fn against_by_hand(runtime: &Runtime) -> Figure {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 40 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        ours.push(runtime.block_on(stage_once(&driver, &scratch, round)));
        floor.push(by_hand(pool.root(), &scratch));
    }
    let what = "stage a fresh ext4, against mkfs + mount by hand";
    Figure::beside(what, ours, floor, "ms", Aim::RatioAtMost(1.2))
}

async fn stage_once(driver: &Driver, scratch: &Scratch, round: usize) -> f64 {
    let csi = driver.csi().await;
    let id = create(&csi, &format!("stage-{round}"), GIB).await;
    let staging = scratch.dir(&format!("staging-{round}"));
    let elapsed = timed_async(stage(&csi, &id, &staging)).await;
    unstage(&csi, &id, &staging).await;
    delete(&csi, &id).await;
    elapsed
}

fn by_hand(dir: &Path, scratch: &Scratch) -> f64 {
    let image = image_beside(dir, "by-hand", GIB);
    let at = scratch.dir("by-hand");
    let mut device = String::new();
    let elapsed = timed(|| {
        device = losetup(&image);
        run("mkfs.ext4", &["-q", "-F", &device]);
        run("mount", &["-t", "ext4", &device, text(&at)]);
    });
    undo(&at, &device, &image);
    elapsed
}

/// Attaches an image with the driver's settings, and returns its device.
pub(crate) fn losetup(image: &Path) -> String {
    let settings = ["--sector-size=4096", "--direct-io=on"];
    let args = [&["--find", "--show"][..], &settings, &[text(image)]].concat();
    run("losetup", &args).trim().to_owned()
}

/// Removes an image, its device and its mount.
pub(crate) fn undo(at: &Path, device: &str, image: &Path) {
    run("umount", &[text(at)]);
    run("losetup", &["--detach", device]);
    std::fs::remove_file(image).expect("the image can be removed");
}

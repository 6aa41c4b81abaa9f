//! A backup of what has changed in 1 % of a sparse volume: against one that reads all of the volume, as
//! without a list of the changed blocks, and against one with the Go host-path driver, which reads both
//! snapshots to make the list. Ours also has the base deleted by then. And the memory for a long list.

mod memory;

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::client::{Call, Csi, map, new_volume, raw_block};
use hostloop_test::driver::{Driver, DriverSpec, NODE};
use hostloop_test::host_path::HostPath;
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind};
use hostloop_test::requests::{self, id_of};
use hostloop_test::scratch::Scratch;
use tonic::transport::{Channel, Endpoint};

use crate::calls::delete;
use crate::measure::{Aim, Figure, millis};
use crate::process;
use crate::runtime::Runtime;

const ROUNDS: usize = 3;
/// The filesystem of a driver's files. It is sparse: some GiB are written to it.
const POOL: u64 = 250 * GIB;
/// The size of the volume, and what is written to it before each snapshot: pieces that lie apart.
const VOLUME: u64 = 100 * GIB;
const PIECE: u64 = 4 * MIB;
const PIECES: u64 = 256;
/// The size of a read. Direct I/O needs memory at a multiple of the block.
const READ: u64 = MIB;
const BLOCK: usize = 4096;

/// The driver makes ranges of blocks that follow each other, as ours does.
const OF_HOST_PATH: [&str; 2] = [
    "--enable-snapshot-metadata",
    "--snapshot-metadata-block-type=VARIABLE_LENGTH",
];

/// Milliseconds and MiB of each backup.
#[derive(Default)]
struct Runs {
    times: Vec<f64>,
    bytes: Vec<f64>,
}

impl Runs {
    fn add(&mut self, (time, bytes): (f64, f64)) {
        self.times.push(time);
        self.bytes.push(bytes);
    }

    /// The figures, with the runs of what they are compared with.
    fn against(self, floor: Runs, which: &str) -> Vec<Figure> {
        let what = |of: &str| format!("{of} of a backup of 1 % of 100 GiB, {which}");
        vec![
            Figure::beside(what("time"), self.times, floor.times, "ms", Aim::None),
            Figure::beside(
                what("reads"),
                self.bytes,
                floor.bytes,
                "MiB",
                Aim::RatioAtMost(0.02),
            ),
        ]
    }
}

pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let mut figures: Vec<Figure> = [PoolKind::Xfs, PoolKind::Btrfs]
        .into_iter()
        .flat_map(|kind| against_all(runtime, kind))
        .collect();
    figures.push(memory::figure(runtime));
    if std::env::var_os("HOSTLOOP_HOST_PATH").is_some() {
        figures.extend(against_host_path(runtime));
    } else {
        eprintln!(
            "not measured: a backup with the host-path driver, which HOSTLOOP_HOST_PATH names"
        );
    }
    figures
}

fn against_all(runtime: &Runtime, kind: PoolKind) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, kind, POOL);
    let driver = DriverSpec::new(&scratch, &[&pool]).overcommitted().start();
    let (mut changed, mut all) = (Runs::default(), Runs::default());
    runtime.block_on(async {
        let ours = Side::ours(&driver, &pool).await;
        for _ in 0..ROUNDS {
            changed.add(ours.back_up().await);
            let start = Instant::now();
            let bytes = read(&ours.image(), &[(0, VOLUME)]);
            all.add((millis(start.elapsed()), bytes));
        }
        ours.delete().await;
    });
    changed.against(all, &format!("{}, against all", kind.name()))
}

/// On a filesystem on which the snapshots of both share blocks: `cp` makes those of the other.
fn against_host_path(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, POOL);
    let other = PoolFixture::named(&scratch, PoolKind::Xfs, "host-path", POOL);
    let driver = DriverSpec::new(&scratch, &[&pool]).overcommitted().start();
    let (mut changed, mut compared) = (Runs::default(), Runs::default());
    runtime.block_on(async {
        let dir = other.mount().expect("a directory is on a filesystem");
        let socket = scratch.path().join("host-path.sock");
        let host_path = HostPath::start_with(dir, &socket, NODE, &OF_HOST_PATH).await;
        let ours = Side::ours(&driver, &pool).await;
        let theirs = Side::of_host_path(&host_path).await;
        for _ in 0..ROUNDS {
            changed.add(ours.back_up().await);
            compared.add(theirs.back_up().await);
        }
        ours.delete().await;
        theirs.delete().await;
    });
    changed.against(compared, "xfs, against host-path")
}

/// Where a driver has its files.
enum Files {
    /// The pool of hostloop.
    Pool(PathBuf),
    /// The directory of the host-path driver.
    Directory(PathBuf),
}

impl Files {
    fn of_volume(&self, id: &str) -> PathBuf {
        match self {
            Files::Pool(pool) => pool.join("volumes").join(id).join("image"),
            Files::Directory(directory) => directory.join(id),
        }
    }

    fn of_snapshot(&self, id: &str) -> PathBuf {
        match self {
            Files::Pool(pool) => pool.join("snapshots").join(id).join("image"),
            Files::Directory(directory) => directory.join(format!("{id}.snap")),
        }
    }
}

/// A driver with a volume and two snapshots of it.
struct Side {
    csi: Csi,
    /// A connection without a limit of time: to read both snapshots takes minutes.
    patient: Channel,
    /// The driver's process.
    pid: u32,
    files: Files,
    volume: String,
    base: String,
    target: String,
}

impl Side {
    /// Ours deletes the base, as backup tools do, and keeps its image.
    async fn ours(driver: &Driver, pool: &PoolFixture) -> Side {
        let files = Files::Pool(pool.root().to_owned());
        let kept = [("keepDeletedBases", "1")];
        let ours = Side::make(driver.socket(), driver.pid(), files, &kept).await;
        ours.csi.ok(requests::delete_snapshot(&ours.base)).await;
        ours
    }

    async fn of_host_path(driver: &HostPath) -> Side {
        let files = Files::Directory(driver.data().to_owned());
        Side::make(driver.socket(), driver.pid(), files, &[]).await
    }

    /// Makes volume and snapshots. The second one has 1 % of other content than the first.
    async fn make(socket: &Path, pid: u32, files: Files, parameters: &[(&str, &str)]) -> Side {
        let csi = Csi::connect(socket).await;
        let endpoint = Endpoint::from_shared(format!("unix://{}", requests::text(socket)));
        let patient = endpoint.expect("a socket's path makes an endpoint");
        let patient = patient.connect().await.expect("the driver serves");
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![raw_block(Mode::SingleNodeWriter)],
            ..new_volume("volume", VOLUME)
        };
        let volume = id_of(csi.ok(request).await);
        let image = files.of_volume(&volume);
        scatter(&image, 0, 0x5a);
        let base = take(&csi, "base", &volume, parameters).await;
        scatter(&image, PIECE / 2, 0xa5);
        let target = take(&csi, "target", &volume, parameters).await;
        Side {
            csi,
            patient,
            pid,
            files,
            volume,
            base,
            target,
        }
    }

    /// The content of the second snapshot.
    fn image(&self) -> PathBuf {
        self.files.of_snapshot(&self.target)
    }

    /// Lists what has changed, and reads it. Returns milliseconds, and the MiB that this and the driver
    /// read.
    async fn back_up(&self) -> (f64, f64) {
        let (before, start) = (process::read_mib(self.pid), Instant::now());
        let changed = self.delta().await;
        let bytes = read(&self.image(), &changed);
        let time = millis(start.elapsed());
        let written = (PIECES * PIECE / MIB) as f64;
        assert!(bytes >= written, "{bytes} MiB of {written} are listed");
        (time, bytes + process::read_mib(self.pid) - before)
    }

    /// The ranges that may differ.
    async fn delta(&self) -> Vec<(u64, u64)> {
        let request = csi::GetMetadataDeltaRequest {
            base_snapshot_id: self.base.clone(),
            target_snapshot_id: self.target.clone(),
            ..Default::default()
        };
        let answers = request.send(self.patient.clone()).await;
        let answers = answers.unwrap_or_else(|status| panic!("GetMetadataDelta: {status:?}"));
        let blocks = answers
            .into_iter()
            .flat_map(|answer| answer.block_metadata)
            .map(|block| (block.byte_offset as u64, block.size_bytes as u64));
        blocks.collect()
    }

    /// A snapshot that is deleted already stays so.
    async fn delete(&self) {
        for snapshot in [&self.base, &self.target] {
            self.csi.ok(requests::delete_snapshot(snapshot)).await;
        }
        delete(&self.csi, &self.volume).await;
    }
}

/// Writes pieces of this byte all over an image, each this far from the beginning of its part.
fn scatter(image: &Path, shift: u64, byte: u8) {
    let image = File::options()
        .write(true)
        .open(image)
        .expect("the volume has an image");
    let piece = vec![byte; PIECE as usize];
    for number in 0..PIECES {
        let offset = number * (VOLUME / PIECES) + shift;
        image
            .write_all_at(&piece, offset)
            .expect("the image takes data");
    }
    image.sync_all().expect("the image can be synced");
}

async fn take(csi: &Csi, name: &str, volume: &str, parameters: &[(&str, &str)]) -> String {
    let request = csi::CreateSnapshotRequest {
        parameters: map(parameters),
        ..requests::snapshot(name, volume)
    };
    let made = csi.ok(request).await.snapshot;
    made.expect("CreateSnapshot answers a snapshot").snapshot_id
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

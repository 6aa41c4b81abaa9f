//! fio on a volume of a fault disk that has a limit: it is to run at the limit, within five percent.
//!
//! After it was idle, a disk may do 50 ms ahead of its limit, so fio counts from the second second on.
//! Buffered writes have no such ramp: the fsync at their end would also write what the page cache still has
//! of the ramp. They last so long that 50 ms are little. Before each run, fio drops its file from the page
//! cache, so that the disk does all that fio counts.
//!
//! Buffered I/O has limits of bytes. The kernel chooses its operations: it reads ahead, and writes pages
//! that lie side by side at once. So an operation of the disk is larger than a block of fio, and fio does
//! many more blocks than a limit of operations says. Only random reads can have such a limit: fio announces
//! them (POSIX_FADV_RANDOM), and the kernel reads each block alone.

use std::path::Path;

use hostloop_proto::csi;
use hostloop_test::client::map;
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind, state_dir};
use hostloop_test::process::Process;
use hostloop_test::scratch::Scratch;

use crate::disk::{End, FILE, Job, fio, mounted, removed};
use crate::measure::{Aim, Figure};
use crate::runtime::Runtime;

/// Runs at each limit.
const ROUNDS: usize = 5;

/// The limits, by the second: any machine can do more.
const OPERATIONS: u64 = 500;
const BYTES: u64 = 20 * MIB;

const SECONDS: End = End::Time {
    ramp: 1,
    counted: 3,
};

/// Eight seconds at the limit. The file has more.
const SYNCED: End = End::Synced(8 * BYTES);

/// What a limit counts.
enum Counted {
    Operations,
    Bytes,
}

/// The parameter of a limit, what it counts, and what fio does under it.
type Case = (&'static str, Counted, Job);

const CASES: [Case; 7] = [
    ("riops", Counted::Operations, direct("randread", "4k", 16)),
    ("wiops", Counted::Operations, direct("randwrite", "4k", 16)),
    ("rbps", Counted::Bytes, direct("read", "1m", 4)),
    ("wbps", Counted::Bytes, direct("write", "1m", 4)),
    (
        "riops",
        Counted::Operations,
        buffered("randread", "4k", SECONDS),
    ),
    ("rbps", Counted::Bytes, buffered("read", "1m", SECONDS)),
    ("wbps", Counted::Bytes, buffered("write", "1m", SYNCED)),
];

const fn direct(pattern: &'static str, block: &'static str, depth: u32) -> Job {
    Job {
        end: SECONDS,
        ..Job::direct(pattern, block, depth)
    }
}

/// A buffered operation ends before the next one begins.
const fn buffered(pattern: &'static str, block: &'static str, end: End) -> Job {
    Job {
        direct: false,
        end,
        ..Job::direct(pattern, block, 1)
    }
}

pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 8 * GIB);
    // Dropped after the driver.
    let _disks = runtime.block_on(Process::fault_disks(scratch.path(), &state_dir(&scratch)));
    let spec = DriverSpec::new(&scratch, &[&pool]);
    let driver = spec.args(["--enable-faults"]).start();
    let staging = scratch.dir("staging");
    let parameters = [("faultDisk", "true")];
    let id = runtime.block_on(async {
        let csi = driver.csi().await;
        mounted(&csi, "limits", &parameters, &staging).await
    });
    // Still without a limit, each block of the file gets data, so that fio reads and writes nothing else.
    let layout = Job {
        end: End::Synced(FILE),
        ..direct("write", "1m", 4)
    };
    fio(&staging, &layout);
    let volume = Limited {
        runtime,
        driver: &driver,
        id: &id,
        staging: &staging,
    };
    let figures = CASES.iter().map(|case| volume.figure(case)).collect();
    runtime.block_on(async { removed(&driver.csi().await, &id, &staging).await });
    figures
}

/// A mounted volume on a fault disk.
struct Limited<'a> {
    runtime: &'a Runtime,
    driver: &'a Driver,
    id: &'a str,
    staging: &'a Path,
}

impl Limited<'_> {
    /// Sets the limit, lets fio run, and ends the limit.
    fn figure(&self, (parameter, counted, job): &Case) -> Figure {
        let (limit, unit, size) = match counted {
            Counted::Operations => (OPERATIONS, "IOPS", 1),
            Counted::Bytes => (BYTES, "MiB/s", MIB),
        };
        self.set(parameter, limit);
        let ours: Vec<_> = (0..ROUNDS)
            .map(|_| {
                let rates = fio(self.staging, job);
                let rate = match counted {
                    Counted::Operations => rates.operations,
                    Counted::Bytes => rates.bytes,
                };
                rate / size as f64
            })
            .collect();
        self.set(parameter, 0);
        let floor = vec![limit as f64 / size as f64; ROUNDS];
        let cache = if job.direct { "direct" } else { "buffered" };
        let Job { pattern, block, .. } = job;
        let what = format!("{parameter}: fio {pattern} {block}, {cache}");
        Figure::beside(what, ours, floor, unit, Aim::Within(0.05))
    }

    /// Sets a limit of the volume; 0 ends it.
    fn set(&self, parameter: &str, limit: u64) {
        let limit = limit.to_string();
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: self.id.to_owned(),
            mutable_parameters: map(&[(parameter, limit.as_str())]),
            ..Default::default()
        };
        self.runtime.block_on(async {
            let csi = self.driver.csi().await;
            csi.ok(request).await;
        });
    }
}

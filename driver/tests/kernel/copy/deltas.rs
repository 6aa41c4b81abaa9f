//! Extents compared with bytes: changed blocks, and allocated blocks.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use hostloop_driver::kernel::extents::{self, ByteRange};
use hostloop_driver::kernel::file::Copied;
use hostloop_driver::storage::copy_image;
use nix::fcntl::{FallocateFlags, fallocate};
use rstest::rstest;

use super::support::{Loop, Pool, Random, changed, collect, populate, run, sparse};

const BLOCK: u64 = 4096;

/// A snapshot, its content, and the blocks that changed since the previous snapshot.
struct Snapshot {
    file: File,
    content: Vec<u8>,
    touched: BTreeSet<u64>,
}

impl Snapshot {
    fn block(&self, i: u64) -> &[u8] {
        let at = (i * BLOCK) as usize;
        self.content
            .get(at..at + BLOCK as usize)
            .unwrap_or(&[0; BLOCK as usize])
    }
}

fn blocks(runs: &[ByteRange]) -> BTreeSet<u64> {
    let run = |r: &ByteRange| r.offset / BLOCK..r.end().div_ceil(BLOCK);
    runs.iter().flat_map(run).collect()
}

/// Writes and discards at random places of a device; returns the touched blocks.
fn churn(device: &File, blocks: u64, random: &mut Random) -> BTreeSet<u64> {
    let mut touched = BTreeSet::new();
    for _ in 0..20 + random.below(60) {
        let at = random.below(blocks);
        let most = if random.below(8) == 0 { 600 } else { 20 };
        let n = (1 + random.below(most)).min(blocks - at);
        touched.extend(at..at + n);
        let (offset, length) = (at * BLOCK, n * BLOCK);
        if random.below(4) == 0 {
            let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(device, hole, offset as i64, length as i64).unwrap();
        } else {
            // One in five is a block of zeros.
            let data = vec![random.below(5) as u8; length as usize];
            device.write_all_at(&data, offset).unwrap();
        }
    }
    device.sync_all().unwrap();
    touched
}

/// Takes snapshots of a volume behind a loop device while it changes and grows.
fn history(pool: &Pool, thick: bool, random: &mut Random) -> Vec<Snapshot> {
    let path = pool.path("image");
    let mut len = 32 << 20;
    let image = sparse(&path, len);
    if thick {
        hostloop_driver::kernel::file::allocate(&image, 0..len).unwrap();
    }
    let device = Loop::attach(&path);
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for i in 0..8 {
        let mut touched = BTreeSet::new();
        if i == 4 {
            len += 8 << 20;
            image.set_len(len).unwrap();
            run("losetup", &["-c", device.device.to_str().unwrap()]);
        }
        if i > 0 {
            touched = churn(&device.open(), len / BLOCK, random);
        }
        let file = sparse(&pool.path(&format!("snapshot-{i}")), 0);
        let copied = populate(&image, &file, &pool.thin(len, thick));
        if thick {
            copy_image::keep_thick(&image, len, copied).unwrap();
        } else {
            assert_eq!(copied == Copied::Shared, pool.reflinks);
        }
        let mut content = vec![0; len as usize];
        file.read_exact_at(&mut content, 0).unwrap();
        snapshots.push(Snapshot {
            file,
            content,
            touched,
        });
    }
    snapshots
}

/// The blocks from `offset` on that are reported as changed.
fn reported(base: &Snapshot, target: &Snapshot, offset: u64, shares: bool) -> BTreeSet<u64> {
    let ranges = changed(&base.file, &target.file, offset, shares);
    let in_order = ranges.windows(2).all(|p| p[0].end() <= p[1].offset);
    assert!(in_order, "{ranges:?}");
    blocks(&ranges)
}

#[rstest]
#[case::ext4("ext4", false)]
#[case::xfs("xfs", false)]
#[case::btrfs("btrfs", false)]
#[case::btrfs_nocow("btrfs+C", false)]
#[case::btrfs_compressed("btrfs+z", false)]
#[case::ext4_thick("ext4", true)]
#[case::xfs_thick("xfs", true)]
#[case::btrfs_thick("btrfs+C", true)]
fn deltas_miss_nothing(#[case] fs: &str, #[case] thick: bool) {
    let pool = Pool::new(fs, 2 << 30);
    let shares = pool.reflinks && !thick;
    let snapshots = history(&pool, thick, &mut Random(0x5eed + fs.len() as u64));
    let (mut pairs, mut real, mut extra) = (0, 0, 0);
    for (j, target) in snapshots.iter().enumerate() {
        let all = target.content.len() as u64 / BLOCK;
        for (i, base) in snapshots.iter().enumerate() {
            let differs = |b: &u64| base.block(*b) != target.block(*b);
            let truth: BTreeSet<u64> = (0..all).filter(differs).collect();
            let found = reported(base, target, 0, shares);
            assert!(truth.is_subset(&found), "{fs}: {i} to {j} misses a change");
            let between = &snapshots[i.min(j) + usize::from(i != j)..=i.max(j)];
            let touched: BTreeSet<u64> = between.iter().flat_map(|s| s.touched.clone()).collect();
            let all_touched = found.is_subset(&touched);
            assert!(all_touched, "{fs}: {i} to {j} reports an untouched block");
            let half = all / 2;
            let rest = reported(base, target, half * BLOCK, shares);
            let expected = found.range(half..).copied().collect();
            assert_eq!(rest, expected, "from the middle");
            pairs += 1;
            real += truth.len();
            extra += found.len() - truth.len();
        }
    }
    // Where content is compared, it is compared exactly.
    assert!(shares || extra == 0, "{fs}: {extra}");
    println!("{fs}: {pairs} pairs, {real} changed blocks, {extra} more reported");
    assert!(real > 1000);
}

#[rstest]
#[case::ext4("ext4", false)]
#[case::xfs("xfs", false)]
#[case::btrfs("btrfs+C", false)]
#[case::xfs_thick("xfs", true)]
fn allocated_runs_hold_every_byte(#[case] fs: &str, #[case] thick: bool) {
    let pool = Pool::new(fs, 2 << 30);
    for snapshot in history(&pool, thick, &mut Random(0xa110c)) {
        let length = snapshot.content.len() as u64;
        let span = ByteRange { offset: 0, length };
        let runs = collect(|emit| extents::allocated(&snapshot.file, span, emit));
        let found = blocks(&runs);
        let zeros = [0; BLOCK as usize];
        let data = |b: &u64| snapshot.block(*b) != zeros;
        assert!((0..length / BLOCK).filter(data).all(|b| found.contains(&b)));
        assert!((found.len() as u64) < length / BLOCK, "holes are left out");
    }
}

/// Many more extents than one FIEMAP call returns.
#[rstest]
fn a_delta_of_many_extents(#[values("ext4", "xfs", "btrfs")] fs: &str) {
    let pool = Pool::new(fs, 1 << 30);
    let len = 6000 * BLOCK;
    let (base, target) = (sparse(&pool.path("a"), len), sparse(&pool.path("b"), 0));
    for i in (0..6000).step_by(2) {
        base.write_all_at(&[1; BLOCK as usize], i * BLOCK).unwrap();
    }
    base.sync_all().unwrap();
    populate(&base, &target, &pool.thin(len, false));
    let mut expected = BTreeSet::new();
    for i in (0..6000).step_by(7) {
        let at = i * BLOCK;
        target.write_all_at(&[2; BLOCK as usize], at).unwrap();
        expected.insert(i);
    }
    let found = changed(&base, &target, 0, pool.reflinks);
    assert_eq!(blocks(&found), expected);
    assert!(extents::extents(&target).unwrap().len() > 2000);
}

//! GetMetadataAllocated and GetMetadataDelta over real pools.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hostloop_driver::controller::{Config, Controller, Error, MetadataBlocks};
use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::storage::{
    self, NewVolume, Provisioning, Reserve, SnapshotRecord, VolumeRecord,
};
use hostloop_proto::csi;
use rstest::rstest;

use super::support::{Pool, Random};
use crate::testkit::{self, Site};

mod histories;

const BLOCK: u64 = 4096;
const VARIABLE: MetadataBlocks = MetadataBlocks::Variable;

/// A controller over one pool. Fields are dropped in order.
struct Rig {
    controller: Controller,
    site: Site<Linux>,
    pool: Pool,
}

impl Rig {
    fn new(fs: &str, metadata_blocks: MetadataBlocks) -> Rig {
        let pool = Pool::new(fs, 2 << 30);
        let mut site = Site::<Linux>::at("default", &pool.path("pool"));
        std::fs::create_dir(pool.path("pool")).unwrap();
        site.options.overcommit = 4.0;
        site.options.reserve = Reserve::Percent(1.0);
        let pools = site.start();
        let config = Config {
            metadata_blocks,
            ..Config::new("n1")
        };
        Rig {
            controller: Controller::new(pools, config),
            site,
            pool,
        }
    }

    /// Ends the process and starts the next one.
    fn restarted(self) -> Rig {
        let Rig {
            controller,
            site,
            pool,
        } = self;
        let config = controller.config.clone();
        drop(controller);
        Rig {
            controller: Controller::new(site.start(), config),
            site,
            pool,
        }
    }

    fn volume(&self, name: &str, bytes: u64, provisioning: Provisioning) -> Arc<VolumeRecord> {
        let pools = &self.controller.pools;
        let mut new = NewVolume {
            capacity_bytes: bytes,
            capabilities: vec![testkit::raw()],
            ..testkit::new(name)
        };
        new.settings.provisioning = provisioning;
        pools
            .create_volume(&pools.named(None).unwrap(), new)
            .unwrap()
    }

    fn snapshot(&self, volume: &VolumeRecord, name: &str) -> Arc<SnapshotRecord> {
        let pools = &self.controller.pools;
        pools
            .create_snapshot(&volume.id, name, &BTreeMap::new())
            .unwrap()
    }

    fn content(&self, snapshot: &SnapshotRecord) -> Vec<u8> {
        let mut content = vec![0; snapshot.size_bytes as usize];
        let image = self.controller.pools.open_snapshot(snapshot).unwrap();
        image.read_exact_at(&mut content, 0).unwrap();
        content
    }

    fn scribble(&self, volume: &VolumeRecord, random: &mut Random) {
        let volume = self
            .controller
            .pools
            .volume(&storage::VolumeHandle::Id(volume.id));
        let volume = volume.unwrap();
        let image = self.controller.pools.open_image(&volume, true).unwrap();
        for _ in 0..30 {
            let block = random.below(volume.capacity_bytes / BLOCK);
            let data = [1 + random.below(200) as u8; BLOCK as usize];
            image.write_all_at(&data, block * BLOCK).unwrap();
        }
    }

    fn allocated(&self, id: &str, offset: i64, max: i32) -> Result<Answer, Error> {
        let request = csi::GetMetadataAllocatedRequest {
            snapshot_id: id.to_owned(),
            starting_offset: offset,
            max_results: max,
            secrets: Default::default(),
        };
        let mut answer = Answer::default();
        self.controller.get_metadata_allocated(request, &mut |r| {
            let style = (r.block_metadata_type, r.volume_capacity_bytes);
            answer.add(style, r.block_metadata)
        })?;
        Ok(answer)
    }

    fn delta(&self, ids: [&str; 2], offset: i64, max: i32) -> Result<Answer, Error> {
        let mut answer = Answer::default();
        let request = delta_request(ids, offset, max);
        self.controller.get_metadata_delta(request, &mut |r| {
            let style = (r.block_metadata_type, r.volume_capacity_bytes);
            answer.add(style, r.block_metadata)
        })?;
        Ok(answer)
    }
}

/// A request for the difference of two snapshots.
fn delta_request([base, target]: [&str; 2], offset: i64, max: i32) -> csi::GetMetadataDeltaRequest {
    csi::GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        starting_offset: offset,
        max_results: max,
        secrets: Default::default(),
    }
}

/// The content of a stream of messages.
#[derive(Default, Debug)]
struct Answer {
    style: Option<(i32, i64)>,
    messages: Vec<usize>,
    tuples: Vec<(u64, u64)>,
}

impl Answer {
    /// Adds a message. Style and capacity are the same in all messages.
    fn add(&mut self, style: (i32, i64), tuples: Vec<csi::BlockMetadata>) -> bool {
        assert_eq!(*self.style.get_or_insert(style), style);
        self.messages.push(tuples.len());
        let tuple = |t: &csi::BlockMetadata| (t.byte_offset as u64, t.size_bytes as u64);
        self.tuples.extend(tuples.iter().map(tuple));
        true
    }

    fn blocks(&self) -> BTreeSet<u64> {
        let blocks = |t: &(u64, u64)| t.0 / BLOCK..(t.0 + t.1) / BLOCK;
        self.tuples.iter().flat_map(blocks).collect()
    }
}

fn differing(base: &[u8], target: &[u8]) -> BTreeSet<u64> {
    let zeros = [0; BLOCK as usize];
    let blocks = target.chunks(BLOCK as usize).enumerate();
    blocks
        .filter(|(i, block)| {
            let at = i * BLOCK as usize;
            let before = base.get(at..at + BLOCK as usize).unwrap_or(&zeros);
            before != *block
        })
        .map(|(i, _)| i as u64)
        .collect()
}

#[rstest]
fn a_volumes_history(
    #[values("ext4", "xfs", "btrfs")] fs: &str,
    #[values(Provisioning::Thin, Provisioning::Thick)] provisioning: Provisioning,
    #[values(VARIABLE, MetadataBlocks::Fixed(65536))] style: MetadataBlocks,
) {
    let rig = Rig::new(fs, style);
    let random = &mut Random(0xb10c);
    let volume = rig.volume("v", 20 << 20, provisioning);
    let first = rig.snapshot(&volume, "first");
    rig.scribble(&volume, random);
    let second = rig.snapshot(&volume, "second");
    rig.controller
        .pools
        .expand_volume(&volume.id, 24 << 20)
        .unwrap();
    rig.scribble(&volume, random);
    let third = rig.snapshot(&volume, "third");
    // Snapshots outlive their volume, and so do their differences.
    rig.controller.pools.delete_volume(&volume.id).unwrap();

    let (unit, code) = match style {
        MetadataBlocks::Fixed(size) => (u64::from(size), 1),
        MetadataBlocks::Variable => (BLOCK, 2),
    };
    let whole = |blocks: BTreeSet<u64>| -> BTreeSet<u64> {
        let n = unit / BLOCK;
        blocks
            .iter()
            .flat_map(|b| b / n * n..b / n * n + n)
            .collect()
    };
    let snapshots = [&first, &second, &third].map(|s| (s, s.id.to_string()));
    for (target, id) in &snapshots {
        let content = rig.content(target);
        let answer = rig.allocated(id, 0, 0).unwrap();
        assert_eq!(answer.style, Some((code, target.size_bytes as i64)));
        assert!(answer.blocks().is_superset(&differing(&[], &content)));
        for (base, base_id) in &snapshots {
            let delta = rig.delta([base_id, id], 0, 0).unwrap();
            let truth = whole(differing(&rig.content(base), &content));
            assert_eq!(delta.blocks(), truth, "{} to {}", base.name, target.name);
            assert!(style == VARIABLE || delta.tuples.iter().all(|t| t.1 == unit));
        }
    }
    let empty = rig.allocated(&snapshots[0].1, 0, 0).unwrap();
    assert_eq!(empty.messages, [0]);
}

/// A stream can resume at each offset after an interruption, with each message size.
#[rstest]
fn streams_go_on_where_they_broke_off(
    #[values(VARIABLE, MetadataBlocks::Fixed(16384))] style: MetadataBlocks,
) {
    let rig = Rig::new("xfs", style);
    let volume = rig.volume("v", 8 << 20, Provisioning::Thin);
    let base = rig.snapshot(&volume, "base");
    rig.scribble(&volume, &mut Random(0xbea7));
    let target = rig.snapshot(&volume, "target");
    let (base, target) = (base.id.to_string(), target.id.to_string());
    let ids = [base.as_str(), &target];
    let all = rig.delta(ids, 0, 0).unwrap().tuples;
    assert!(all.len() > 10);
    for max_results in [1, 3, i32::MAX] {
        let answer = rig.delta(ids, 0, max_results).unwrap();
        assert_eq!(answer.tuples, all);
        assert!(answer.messages.iter().all(|n| *n <= max_results as usize));
    }
    for i in 0..all.len() {
        for start in [all[i].0, all[i].0 + 1, all[i].0 + all[i].1] {
            let rest = rig.delta(ids, start as i64, 0).unwrap();
            assert!(rest.tuples.first().is_none_or(|t| start < t.0 + t.1));
            let later = |t: &&(u64, u64)| start < t.0 + t.1;
            let expected: Vec<(u64, u64)> = all.iter().filter(later).copied().collect();
            assert_eq!(rest.tuples.last(), expected.last());
            assert_eq!(rest.tuples.len(), expected.len());
            let allocated = rig.allocated(&target, start as i64, 0).unwrap();
            assert_eq!(allocated.tuples, rest.tuples, "the base is empty");
        }
    }
    let mut calls = 0;
    let request = delta_request(ids, 0, 1);
    let gone = rig.controller.get_metadata_delta(request, &mut |_| {
        calls += 1;
        calls < 3
    });
    assert!(gone.is_ok());
    assert_eq!(calls, 3, "the client has gone");
}

#[test]
fn bad_requests() {
    let mut rig = Rig::new("ext4", VARIABLE);
    let (one, other) = (
        rig.volume("one", 1 << 20, Provisioning::Thin),
        rig.volume("other", 1 << 20, Provisioning::Thin),
    );
    let (mine, foreign) = (rig.snapshot(&one, "mine"), rig.snapshot(&other, "foreign"));
    let gone = rig.snapshot(&one, "gone");
    rig.controller.pools.delete_snapshot(&gone.id).unwrap();
    let (mine, foreign) = (mine.id.to_string(), foreign.id.to_string());
    let gone = gone.id.to_string();
    let elsewhere = storage::SnapshotId::generate(storage::PoolId::generate()).to_string();

    let ids = [
        ("", "invalid"),
        ("nonsense", "missing"),
        ("../../etc/passwd", "missing"),
        (&one.id.to_string(), "missing"),
        (&gone, "missing"),
        (&elsewhere, "elsewhere"),
        (&mine, "ok"),
    ];
    let numbers = [
        ((0, 0), "ok"),
        ((1 << 20, 0), "ok"),
        (((1 << 20) + 1, 0), "out of range"),
        ((-1, 0), "out of range"),
        ((i64::MIN, 0), "out of range"),
        ((i64::MAX, 0), "out of range"),
        ((0, -1), "invalid"),
        ((0, i32::MIN), "invalid"),
    ];
    let code = |answer: Result<Answer, Error>| match answer {
        Ok(_) => "ok",
        Err(Error::Invalid(_)) => "invalid",
        Err(Error::OutOfRange(_)) => "out of range",
        Err(Error::NotFound(_) | Error::Pool(storage::Error::NoSnapshot(_))) => "missing",
        Err(Error::Pool(storage::Error::ForeignPool(_))) => "elsewhere",
        Err(Error::FailedPrecondition(why)) if why.contains("full backup") => "full backup",
        Err(Error::Off(_)) => "off",
        Err(e) => panic!("{e}"),
    };
    for (id, expected) in ids {
        assert_eq!(code(rig.allocated(id, 0, 0)), expected, "{id:?}");
        assert_eq!(code(rig.delta([&mine, id], 0, 0)), expected, "to {id:?}");
        // A tool has to read all blocks without its base.
        let expected = if id == gone { "full backup" } else { expected };
        assert_eq!(code(rig.delta([id, &mine], 0, 0)), expected, "from {id:?}");
    }
    let both = [mine.as_str(), &mine];
    for ((offset, max), expected) in numbers {
        let got = [
            rig.allocated(&mine, offset, max),
            rig.delta(both, offset, max),
        ];
        assert_eq!(got.map(code), [expected; 2], "{offset} {max}");
    }
    assert_eq!(code(rig.delta([&mine, &foreign], 0, 0)), "invalid");

    rig.controller.config.snapshot_metadata = false;
    let got = [rig.allocated(&mine, 0, 0), rig.delta(both, 0, 0)];
    assert_eq!(got.map(code), ["off"; 2]);
}

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop_report::cuts::{CutsLine, EndedExploration};
use tonic::Code;

use super::*;
use crate::record::VolumeRecord;
use crate::storage::NewVolume;
use crate::testkit::{Configs, Site, mounted, new, pairs, stage_at};

/// The parameters of the owner of a volume.
const OWNER: &str = "csi.storage.k8s.io/pvc/name=data csi.storage.k8s.io/pvc/namespace=shop";

/// A server over a pool with reflinks.
fn server(site: &mut Site, faults: bool) -> Server {
    site.kernel.set_reflinks(true);
    site.open();
    let mut configs = Configs::default();
    configs.node.faults = faults;
    configs.server(site.pools())
}

/// A volume that is staged, as its record says.
fn staged(site: &Site, name: &str) -> Arc<VolumeRecord> {
    let made = site.create(NewVolume {
        parameters: pairs(&format!("{OWNER} discard=true")),
        ..new(name)
    });
    site.update(made.id, |record| {
        record.stage = Some(stage_at("/k/stage", mounted(), None));
    })
}

fn request(volume: &VolumeRecord, cuts: u32) -> TakeCuts {
    TakeCuts {
        volume: volume.id.to_string(),
        cuts,
        every_ms: 10,
        expire_after_s: 60,
    }
}

/// Takes cuts to the end. `before` comes before each of them, with its number.
async fn burst(
    mut exploration: Exploration,
    before: impl Fn(u32),
) -> (Vec<String>, EndedExploration) {
    let mut taken = Vec::new();
    loop {
        before(taken.len() as u32 + 1);
        match exploration.next().await {
            CutsLine::Cut(cut) => {
                assert_eq!(cut.number as usize, taken.len() + 1);
                taken.push(cut.snapshot);
            }
            CutsLine::Ended(ended) => {
                assert_eq!(ended.taken as usize, taken.len());
                return (taken, ended);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_burst_takes_cuts_that_are_kept_or_dropped() {
    let mut site = Site::fake(&["a"]);
    let server = server(&mut site, true);
    let volume = staged(&site, "one");
    let exploration = server.explore(request(&volume, 3)).await.unwrap();
    let begun = exploration.begun();
    let (taken, ended) = burst(exploration, |_| {}).await;
    assert!(ended.is_complete() && ended.why.is_none(), "{ended:?}");
    assert_eq!(ended.exploration, begun.exploration);

    let listed = server.list_cuts(Some(&begun.exploration)).unwrap();
    let ids: Vec<_> = listed.cuts.iter().map(|cut| cut.snapshot.clone()).collect();
    assert_eq!(ids, taken);
    // Each is kept as long as the others.
    let expiries: Vec<_> = listed.cuts.iter().map(|cut| cut.expires_ns).collect();
    assert!(expiries.is_sorted_by(|a, b| a < b), "{expiries:?}");
    assert!(expiries[0] >= begun.expires_ns);
    assert_eq!(listed.cuts[2].number, 3);
    let record = site.pools().snapshot(&taken[0].parse().unwrap()).unwrap();
    assert_eq!(record.parameters, pairs(OWNER));

    let kept = server.keep_cut(&taken[1]).await.unwrap();
    assert_eq!(kept, server.keep_cut(&taken[1]).await.unwrap());
    assert!(kept.name.ends_with("-0002"), "{}", kept.name);
    let dropped = server.drop_cuts(&begun.exploration).await.unwrap();
    assert_eq!(dropped.dropped, 2);
    let again = server.drop_cuts(&begun.exploration).await.unwrap();
    assert_eq!(again.dropped, 0);
    assert!(server.list_cuts(None).unwrap().cuts.is_empty());
    // The kept one is an ordinary snapshot, also after a restart.
    drop(server);
    site.open();
    let left = site.pools().snapshots();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].id.to_string(), taken[1]);
    assert_eq!(left[0].cut, None);
}

#[tokio::test]
async fn a_late_cut_says_by_how_much() {
    let mut site = Site::fake(&["a"]);
    let server = server(&mut site, true);
    let volume = staged(&site, "one");
    let mut exploration = server.explore(request(&volume, 1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(30)).await;
    match exploration.next().await {
        CutsLine::Cut(cut) => assert!(cut.late_ms >= 30, "{cut:?}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn expired_cuts_go_and_others_stay() {
    let mut site = Site::fake(&["a"]);
    let server = server(&mut site, true);
    let volume = staged(&site, "one");
    for (number, expires_ns) in [(1, 1), (2, u64::MAX)] {
        take_expiring(&site, &volume, number, expires_ns);
    }
    server.drop_expired_cuts(0).await;
    assert_eq!(left(&server), [2]);
}

/// Another pool may hang.
#[tokio::test]
async fn each_pool_loses_its_expired_cuts_alone() {
    let mut site = Site::fake(&["a", "b"]);
    let server = server(&mut site, true);
    for (number, pool) in [(1, "a"), (2, "b")] {
        let made = site.create_in(pool, new(pool));
        let volume = site.update(made.id, |record| {
            record.stage = Some(stage_at("/k/stage", mounted(), None));
        });
        take_expiring(&site, &volume, number, 1);
    }
    server.drop_expired_cuts(1).await;
    assert_eq!(left(&server), [1]);
    server.drop_expired_cuts(0).await;
    assert!(left(&server).is_empty());
}

fn take_expiring(site: &Site, volume: &VolumeRecord, number: u32, expires_ns: u64) {
    let mark = CutMark {
        exploration: ExplorationId::generate(),
        number,
        expires_ns,
    };
    site.pools().take_cut(&volume.id, mark).unwrap();
}

/// The numbers of the cuts that are left.
fn left(server: &Server) -> Vec<u32> {
    let left = server.list_cuts(None).unwrap().cuts;
    left.iter().map(|cut| cut.number).collect()
}

#[tokio::test]
async fn a_burst_ends_when_its_volume_is_unstaged_or_gone() {
    for (is_deleted, outcome) in [(false, "not-in-use"), (true, "volume-gone")] {
        let mut site = Site::fake(&["a"]);
        let server = server(&mut site, true);
        let volume = staged(&site, "one");
        let exploration = server.explore(request(&volume, 1000)).await.unwrap();
        let (taken, ended) = burst(exploration, |number| {
            if number == 3 {
                site.update(volume.id, |record| record.stage = None);
                if is_deleted {
                    site.pools().delete_volume(&volume.id).unwrap();
                }
            }
        })
        .await;
        assert_eq!((taken.len(), &*ended.outcome), (2, outcome), "{ended:?}");
        assert!(ended.why.is_some());
    }
}

#[tokio::test]
async fn a_burst_ends_when_room_is_short() {
    let mut site = Site::fake(&["a"]);
    site.options.max_snapshot_bytes_per_namespace = Some(0);
    let server = server(&mut site, true);
    let volume = staged(&site, "one");
    let image = site.pools().open_image(&volume, true).unwrap();
    image.write_all_at(&[1; 8192], 0).unwrap();
    let exploration = server.explore(request(&volume, 5)).await.unwrap();
    let (taken, ended) = burst(exploration, |_| {}).await;
    assert_eq!((taken.len(), &*ended.outcome), (0, "no-room"), "{ended:?}");
    assert!(site.pools().snapshots().is_empty());
}

#[tokio::test]
async fn a_burst_ends_when_it_is_told_to_and_another_can_follow() {
    let mut site = Site::fake(&["a"]);
    let server = server(&mut site, true);
    let volume = staged(&site, "one");
    let exploration = server.explore(request(&volume, 1000)).await.unwrap();
    let second = server.explore(request(&volume, 1)).await;
    assert_eq!(second.err().map(|why| why.code()), Some(Code::Aborted));
    let id = exploration.begun().exploration;
    let has_ended = AtomicBool::new(false);
    let (dropped, (taken, ended)) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let dropped = server.drop_cuts(&id).await.unwrap();
            assert!(has_ended.load(Ordering::SeqCst), "it waits for the burst");
            dropped
        },
        async {
            let all = burst(exploration, |_| {}).await;
            has_ended.store(true, Ordering::SeqCst);
            all
        }
    );
    assert_eq!(ended.outcome, "ended");
    assert_eq!(dropped.dropped as usize, taken.len());
    let next = server.explore(request(&volume, 1)).await.unwrap();
    assert!(burst(next, |_| {}).await.1.is_complete());
}

#[tokio::test]
async fn what_is_refused_says_why() {
    let mut site = Site::fake(&["a"]);
    let strict = server(&mut site, false);
    let idle = site.make("idle");
    let refused = strict.explore(request(&idle, 1)).await.err().unwrap();
    assert!(refused.message().contains("--enable-faults"), "{refused}");
    drop(strict);

    let server = server(&mut site, true);
    let good = request(&staged(&site, "used"), 1);
    let gone = VolumeId::generate(idle.id.pool()).to_string();
    for (request, why) in [
        (request(&idle, 1), "is not in use"),
        (
            TakeCuts {
                volume: gone,
                ..good.clone()
            },
            "not found",
        ),
        (
            TakeCuts {
                volume: "notes".to_owned(),
                ..good.clone()
            },
            "vol-…",
        ),
        (
            TakeCuts {
                cuts: 0,
                ..good.clone()
            },
            "1 to 1000 cuts",
        ),
        (
            TakeCuts {
                cuts: 1001,
                ..good.clone()
            },
            "1 to 1000 cuts",
        ),
        (
            TakeCuts {
                every_ms: 9,
                ..good.clone()
            },
            "10ms to 60s",
        ),
        (
            TakeCuts {
                expire_after_s: 59,
                ..good.clone()
            },
            "60 to 604800",
        ),
        (
            TakeCuts {
                expire_after_s: u64::MAX,
                ..good.clone()
            },
            "60 to 604800",
        ),
    ] {
        let refused = server.explore(request).await.err().unwrap();
        assert!(refused.message().contains(why), "{why}: {refused}");
    }
    for (answer, why) in [
        (server.keep_cut("x").await.err(), "snap-…"),
        (server.drop_cuts("x").await.err(), "exploration-…"),
        (server.list_cuts(Some("x")).err(), "exploration-…"),
    ] {
        assert!(answer.unwrap().message().contains(why), "{why}");
    }
    let missing = SnapshotId::generate(idle.id.pool()).to_string();
    let missing = server.keep_cut(&missing).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
}

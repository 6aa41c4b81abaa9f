use std::os::unix::fs::FileExt;

use super::*;
use crate::record::VolumeRecord;
use crate::testkit::{MI, Site};

const SNAPSHOT: &str = "csi.storage.k8s.io/volumesnapshot/namespace";
const GROUP: &str = "csi.storage.k8s.io/volumegroupsnapshot/namespace";

fn parameters(key: &str, namespace: &str) -> Parameters {
    Parameters::from([(key.to_owned(), namespace.to_owned())])
}

/// A site with a limit of 4 MiB, and volumes with 3 MiB of data. Without reflinks, each snapshot
/// promises all of these.
fn site(volumes: usize) -> (Site, Vec<VolumeRecord>) {
    let mut site = Site::fake(&["a", "b"]);
    site.options.max_snapshot_bytes_per_namespace = Some(4 * MI);
    site.open();
    let volumes = (0..volumes).map(|n| {
        let volume = site.make(&n.to_string());
        let image = site.pools().open_image(&volume, true).unwrap();
        image.write_all_at(&vec![1; 3 << 20], 0).unwrap();
        image.sync_all().unwrap();
        (*volume).clone()
    });
    let volumes = volumes.collect();
    (site, volumes)
}

#[test]
fn a_namespace_has_no_more_than_its_limit() {
    let (mut site, volumes) = site(1);
    let take = |site: &Site, name: &str, namespace: &str| {
        let parameters = parameters(SNAPSHOT, namespace);
        site.pools()
            .create_snapshot(&volumes[0].id, name, &parameters)
    };
    let first = take(&site, "1", "one").unwrap();
    let refused = take(&site, "2", "one").unwrap_err();
    assert!(refused.is_no_room());
    let why = refused.to_string();
    assert!(
        why.starts_with("the snapshots of namespace \"one\" promise"),
        "{why}"
    );
    assert!(why.contains("--max-snapshot-bytes-per-namespace"), "{why}");
    take(&site, "3", "other").unwrap();
    // Also after a restart.
    site.open();
    take(&site, "4", "one").unwrap_err();
    site.pools().delete_snapshot(&first.id).unwrap();
    take(&site, "5", "one").unwrap();
    assert!(site.pools().quota.0.lock().is_empty());
}

/// Groups count, too, and snapshots without a namespace share one limit.
#[test]
fn groups_count_and_so_do_snapshots_of_no_namespace() {
    let (site, volumes) = site(2);
    let ids = [volumes[0].id, volumes[1].id];
    let group = parameters(GROUP, "one");
    let refused = site.pools().create_group("g", &ids, &group).unwrap_err();
    assert!(
        matches!(refused, Error::SnapshotQuota { .. }),
        "{refused:?}"
    );
    assert!(site.pools().snapshots().is_empty() && site.pools().quota.0.lock().is_empty());
    site.pools().create_group("g", &ids[..1], &group).unwrap();
    let single = parameters(SNAPSHOT, "one");
    site.pools()
        .create_snapshot(&ids[0], "s", &single)
        .unwrap_err();

    site.pools()
        .create_snapshot(&ids[0], "t", &Parameters::new())
        .unwrap();
    site.pools()
        .create_snapshot(&ids[1], "u", &Parameters::new())
        .unwrap_err();
}

#[test]
fn of_many_at_once_only_those_within_the_limit_succeed() {
    let (site, volumes) = site(8);
    let taken: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> = volumes
            .iter()
            .map(|volume| {
                let site = &site;
                scope.spawn(move || {
                    let one = parameters(SNAPSHOT, "one");
                    site.pools()
                        .create_snapshot(&volume.id, &volume.name, &one)
                        .is_ok()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(taken.iter().filter(|taken| **taken).count(), 1);
    assert_eq!(site.pools().snapshots().len(), 1);
}

/// Another pool may hang while it is found out what its snapshots share.
#[test]
fn a_pool_that_hangs_keeps_no_other_from_its_snapshots() {
    let (site, volumes) = site(1);
    let other = site.pools().named(Some("b")).unwrap();
    let hangs = other.measured.lock();
    let (pools, volume) = (site.pools().clone(), volumes[0].id);
    let (done, taken) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = done.send(
            pools
                .create_snapshot(&volume, "s", &Parameters::new())
                .is_ok(),
        );
    });
    // Much longer than any snapshot takes.
    assert_eq!(taken.recv_timeout(crate::testkit::PATIENCE), Ok(true));
    drop(hangs);
}

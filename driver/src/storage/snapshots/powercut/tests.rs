use super::*;
use crate::storage::Error;
use crate::testkit::Site;

fn site(reflinks: bool) -> Site {
    let mut site = Site::fake(&["a"]);
    site.kernel.set_reflinks(reflinks);
    site.open();
    site
}

fn cut(site: &Site, volume: &VolumeId, name: &str) -> Result<Arc<SnapshotRecord>> {
    site.pools()
        .create_powercut(volume, name, &Parameters::new())
}

/// Earlier builds can't read the field, so only a power cut has it.
#[test]
fn the_record_says_that_it_is_a_power_cut() {
    let mut site = site(true);
    let made = site.make("one");
    let frozen = site.snapshot(&made, "frozen");
    let taken = cut(&site, &made.id, "cut").unwrap();
    assert_eq!(taken.consistency, Consistency::Powercut);
    assert_eq!(frozen.consistency, Consistency::Frozen);
    for (record, expected) in [(&taken, Some("powercut")), (&frozen, None)] {
        let path = site.path(format!("snapshots/{}/snapshot.json", record.id));
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let written = json.get("consistency").and_then(|value| value.as_str());
        assert_eq!(written, expected);
    }
    let pools = site.open();
    assert_eq!(pools.snapshots(), [frozen, taken]);
}

#[test]
fn a_mounted_volume_is_neither_frozen_nor_flushed() {
    let site = site(true);
    let made = site.make("one");
    let _mounted = site.mounted(&made, "mount");
    site.kernel.take_effects();
    let taken = cut(&site, &made.id, "cut").unwrap();
    assert_eq!(taken.source, made.id);
    assert!(site.kernel.take_effects().is_empty());
    assert_eq!(site.volume(made.id).freeze, None);
    refused!(cut(&site, &made.id, "cut"), Error::Refused(_));
}

#[test]
fn a_pool_that_would_copy_refuses_it_before_it_does_anything() {
    let site = site(false);
    let made = site.make("one");
    let before = site.entries();
    refused!(cut(&site, &made.id, "cut"), Error::Refused(_));
    assert_eq!(site.entries(), before);
}

/// The pool cloned when it was opened, and does not now.
#[test]
fn a_clone_that_the_kernel_refuses_is_no_copy() {
    let site = site(true);
    let made = site.make("one");
    let before = site.entries();
    site.kernel.set_reflinks(false);
    refused!(cut(&site, &made.id, "cut"), Error::CannotFreeze(_));
    assert_eq!(site.entries(), before);
}

//! What copies of bytes leave in the page cache.

use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hostloop_driver::kernel::file::{self, Pace};
use rstest::rstest;
use rustix::fs::{Advice, fadvise};

use super::support::{Pool, arg, run, sparse};
use crate::testkit::MI;

/// Bytes of a file in the page cache.
fn cached(path: &Path) -> u64 {
    let found = run("fincore", &["--bytes", "--noheadings", "--output", "RES", arg(path)]);
    found.trim().parse().unwrap()
}

/// A copy of gigabytes would push out what pods have cached: its source as much as its target.
#[rstest]
#[case::of_a_frozen_source(Pace::Fast, 8 * MI..=16 * MI)]
#[case::in_the_background(Pace::Gentle, 0..=MI)]
fn a_copy_leaves_the_page_cache_to_others(
    #[values("ext4", "xfs")] fs: &str,
    #[case] pace: Pace,
    // Other programs may need memory, and look at the same pages.
    #[case] expected: RangeInclusive<u64>,
) {
    let pool = Pool::new(fs, 512 * MI);
    let (from, to) = (sparse(&pool.path("from"), 0), sparse(&pool.path("to"), 0));
    from.write_all_at(&[7; 16 * MI as usize], 0).unwrap();
    from.sync_all().unwrap();
    fadvise(&from, 0, None, Advice::DontNeed).unwrap();
    file::copy_sparse(&from, &to, pace, &|| false).unwrap();
    to.sync_all().unwrap();
    let left = ["from", "to"].map(|name| cached(&pool.path(name)));
    assert!(left.iter().all(|bytes| expected.contains(bytes)), "{left:?}");
}

//! What copies of bytes leave in the page cache.

use std::fs::File;
use std::io::IoSliceMut;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hostloop_driver::kernel::file::{self, Pace};
use rstest::rstest;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::support::{Pool, sparse};
use crate::testkit::MI;

/// Bytes of a file in the page cache: those that a read without a wait returns.
fn cached(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    // Such a read begins to read the page from the disk, and without this advice the next ones,
    // too.
    fadvise(&file, 0, None, Advice::Random).unwrap();
    let mut page = [0; 4096];
    let mut read = |offset| {
        let into = &mut [IoSliceMut::new(&mut page)];
        match preadv2(&file, into, offset, ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN) => 0,
            read => read.unwrap() as u64,
        }
    };
    (0..size).step_by(4096).map(&mut read).sum()
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
    assert!(
        left.iter().all(|bytes| expected.contains(bytes)),
        "{left:?}"
    );
}

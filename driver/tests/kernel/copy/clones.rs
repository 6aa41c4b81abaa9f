//! Clones of images with very many extents.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostloop_driver::kernel::file::{Copied, Pace};
use hostloop_driver::kernel::foreground::{self, Foreground};
use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::wanted::Wanted;
use hostloop_driver::kernel::{self, extents};
use hostloop_driver::storage::copy_image;
use hostloop_driver::storage::{self, Error};
use rstest::rstest;

use super::support::{Pool, sparse};

/// More than a clone takes in two steps.
const EXTENTS: u64 = 2_000;

/// A file of this many extents, with a hole after each.
fn scattered(pool: &Pool, name: &str) -> File {
    let file = sparse(&pool.path(name), EXTENTS * 8192);
    for n in 0..EXTENTS {
        file.write_all_at(&[1; 4096], n * 8192).unwrap();
    }
    file.sync_all().unwrap();
    file
}

fn clone(pool: &Pool, from: &File, to: &File, pace: Pace) -> storage::Result<Copied> {
    let want = pool.thin(EXTENTS * 8192, false);
    copy_image::copy(&Linux::new(), from, to, &want, None, pace, &|| false)
}

/// A clone under a freeze is as fast as it can be: the pods of the volume wait for it.
#[rstest]
#[case::of_a_frozen_filesystem(Pace::Fast, false)]
#[case::of_an_image_at_rest(Pace::Gentle, true)]
fn a_clone_gives_way_between_its_steps(#[case] pace: Pace, #[case] pauses: bool) {
    let pool = Pool::new("xfs", 1 << 30);
    let from = scattered(&pool, "from");
    let to = sparse(&pool.path("to"), 0);
    let calls = Arc::new(Foreground::default());
    let _call = calls.enter();
    let before = foreground::paused();
    let cloned = foreground::behind(vec![calls.clone()], || clone(&pool, &from, &to, pace));
    assert_eq!(cloned.unwrap(), Copied::Shared);
    assert_eq!(foreground::paused() > before, pauses);
    assert_eq!(extents::clone::count(&to), EXTENTS);
}

#[test]
fn a_clone_ends_at_its_next_step_once_nobody_wants_it() {
    let pool = Pool::new("xfs", 1 << 30);
    let from = scattered(&pool, "from");
    let to = sparse(&pool.path("to"), 0);
    let unwanted = Arc::new_cyclic(|this: &std::sync::Weak<Wanted>| {
        let (this, steps) = (this.clone(), AtomicUsize::new(0));
        Wanted::with_step(move || {
            if steps.fetch_add(1, Ordering::SeqCst) == 1 {
                this.upgrade().unwrap().end();
            }
        })
    });
    let cloned = unwanted.run(|| clone(&pool, &from, &to, Pace::Gentle));
    assert!(
        matches!(cloned, Err(Error::Kernel(kernel::Error::Unwanted { .. }))),
        "{cloned:?}"
    );
    let done = extents::clone::count(&to);
    assert!(0 < done && done < EXTENTS, "{done}");
}

//! Attaching as the driver does (a free device looked for, flags read back), against
//! LOOP_CTL_GET_FREE and LOOP_CONFIGURE and nothing else.

use std::fs::File;

use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{LoopDevices, LoopSpec};
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;

use crate::bare_loop;
use crate::measure::{Aim, Figure, timed};
use crate::runtime::Runtime;

const ROUNDS: usize = 101;

pub(crate) fn figures(_: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 4 * GIB);
    let path = pool.root().join("attach");
    std::fs::create_dir_all(pool.root()).expect("the pool's folder can be made");
    let image = File::create_new(&path).expect("an image can be made");
    image.set_len(GIB).expect("an image can be sparse");
    let kernel = Linux::new();
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut attached = None;
        let spec = LoopSpec {
            backing: &image,
            label: "bench",
            offset: 0,
            read_only: false,
            direct_io: true,
            autoclear: true,
            minor: None,
        };
        ours.push(timed(|| {
            attached = Some(kernel.loop_attach(&spec).expect("it attaches"))
        }));
        // Both detach with their last handle, outside the clock.
        drop(attached);
        let mut attached = None;
        floor.push(timed(|| {
            attached = Some(bare_loop::attach(&image).expect("it attaches"))
        }));
        drop(attached);
    }
    let what = "attach, against bare LOOP_CONFIGURE";
    vec![Figure::beside(
        what,
        ours,
        floor,
        "ms",
        Aim::RatioAtMost(1.5),
    )]
}

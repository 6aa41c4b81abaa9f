//! What `hostloop proxy` adds to a call: the same call through the proxy and past it, in turns.

use hostloop_proto::csi;
use hostloop_test::client::Csi;
use hostloop_test::driver::DriverSpec;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::process::Process;
use hostloop_test::scratch::Scratch;

use crate::measure::{Aim, Figure, median, timed_async};
use crate::runtime::Runtime;

/// Of nine rounds, the smallest and the largest are not part of the spread.
const ROUNDS: usize = 9;
/// Calls of each side in a round.
const CALLS: usize = 500;

pub(crate) fn figures() -> Vec<Figure> {
    let runtime = Runtime::of_one_thread();
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let socket = scratch.path().join("proxy.sock");
    let (mut added, mut direct) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let _proxy = Process::proxy(scratch.path(), &driver.endpoint(), &socket, None).await;
        let (through, past) = (Csi::connect(&socket).await, driver.csi().await);
        // The first round warms both up. It is not counted.
        for round in 0..=ROUNDS {
            let (mut with, mut without) = (Vec::new(), Vec::new());
            for _ in 0..CALLS {
                with.push(called(&through).await);
                without.push(called(&past).await);
            }
            if round > 0 {
                let floor = median(&without);
                added.push(median(&with) - floor);
                direct.push(floor);
            }
        }
    });
    vec![
        Figure::alone("a call without hostloop proxy", direct, "ms", Aim::None),
        Figure::alone(
            "what hostloop proxy adds to it",
            added,
            "ms",
            Aim::LessThan(0.2),
        ),
    ]
}

/// The time of a call that the driver answers at once.
async fn called(csi: &Csi) -> f64 {
    timed_async(async {
        csi.ok(csi::NodeGetCapabilitiesRequest {}).await;
    })
    .await
}

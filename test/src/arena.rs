//! One scenario's machine: a pool, a mount namespace, and the drivers that start and stop on them.

use std::error::Error as _;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use tonic::Status;

use crate::PATIENCE;
use crate::client::Csi;
use crate::driver::{Dead, Driver, DriverSpec};
use crate::leaks::Leaks;
use crate::namespace::Namespace;
use crate::pools::{GIB, PoolFixture};
use crate::scenarios::Scenario;
use crate::scratch::Scratch;
use crate::steps::Step;
use crate::world::World;

/// The size of a scenario's pool.
const POOL_BYTES: u64 = 8 * GIB;

/// Time for the kernel to show the end of a killed driver, and for a driver to reach an effect that
/// runs after the answer.
const AFTERMATH: Duration = Duration::from_millis(100);

/// One scenario's machine. The fields are dropped in order: first the driver, last the files.
pub struct Arena {
    /// The scenario that runs here.
    pub scenario: Scenario,
    /// The state that the driver has acknowledged.
    pub world: World,
    running: Option<(Driver, Csi)>,
    leaks: Option<Leaks>,
    namespace: Namespace,
    pool: PoolFixture,
    scratch: Scratch,
}

/// How an act ends.
#[derive(Debug)]
pub enum Ended {
    /// All steps were answered OK and the driver goes on.
    Done,
    /// The driver died in this step of the act (or, at its length, after the last answer).
    Died(usize),
    /// A step was answered with an error.
    Failed(usize, Status),
}

impl Arena {
    /// Creates a pool and starts a driver that serves it.
    pub async fn new(scenario: Scenario) -> Arena {
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, scenario.pool, POOL_BYTES);
        let mut arena = Arena {
            world: World::new(scratch.dir("kubelet")),
            scenario,
            running: None,
            leaks: None,
            namespace: Namespace::new(&scratch),
            pool,
            scratch,
        };
        arena.start().await;
        let leaks = Leaks::before(&arena.scratch, &[&arena.pool], arena.driver());
        arena.leaks = Some(leaks);
        arena
    }

    fn spec(&self) -> DriverSpec<'_> {
        let spec = DriverSpec::new(&self.scratch, &[&self.pool]).inside(&self.namespace);
        // The same build with and without fail points.
        spec.failpoints("")
    }

    /// Starts an undisturbed driver.
    pub async fn start(&mut self) {
        let driver = self.spec().start();
        let csi = driver.csi().await;
        self.running = Some((driver, csi));
    }

    /// Starts a driver with fail points; returns how it ended if it did not start to serve.
    pub async fn start_disturbed(&mut self, failpoints: String) -> Result<(), Dead> {
        let mut driver = self.spec().failpoints(failpoints).try_start()?;
        let csi = driver.try_csi().await?;
        self.running = Some((driver, csi));
        Ok(())
    }

    /// The running driver.
    pub fn driver(&self) -> &Driver {
        &running(&self.running).0
    }

    /// The running driver, for ending it.
    pub fn driver_mut(&mut self) -> &mut Driver {
        &mut self.running.as_mut().expect("a driver runs").0
    }

    /// Stops the driver as a service manager does.
    pub fn stop(&mut self) {
        self.take().stop();
    }

    /// Like [`Arena::stop`], unless a fail point kills the driver first.
    pub fn stop_disturbed(&mut self) -> Result<(), Dead> {
        self.take().try_stop()
    }

    /// The driver without its client.
    fn take(&mut self) -> Driver {
        self.running.take().expect("a driver runs").0
    }

    /// Runs the scenario's preparation with an undisturbed driver.
    pub async fn prepare(&mut self) {
        let steps = self.scenario.prepare;
        let (driver, csi) = running(&self.running);
        self.world.insist_all(driver, csi, steps).await;
    }

    /// Runs the act once, without retries.
    pub async fn act(&mut self) -> Ended {
        let steps = self.scenario.act;
        for (at, step) in steps.iter().enumerate() {
            let (driver, csi) = running(&self.running);
            if let Err(status) = self.world.apply(driver, csi, *step).await {
                // An answer has no source, a broken connection has one. The kernel completes the
                // I/O of a driver's threads before it has ended.
                let limit = if status.source().is_some() {
                    PATIENCE
                } else {
                    AFTERMATH
                };
                let died = self.driver_mut().wait_ended(limit).is_some();
                return if died {
                    Ended::Died(at)
                } else {
                    Ended::Failed(at, status)
                };
            }
        }
        match self.driver_mut().wait_ended(AFTERMATH) {
            Some(_) => Ended::Died(steps.len()),
            None => Ended::Done,
        }
    }

    /// Starts a driver after the old one died, then runs [`Arena::put_up`]. If mounts die with the
    /// driver, the new one gets a new namespace.
    pub async fn recover(&mut self, at: usize) {
        self.running = None;
        if self.scenario.mounts_die {
            self.namespace = Namespace::new(&self.scratch);
        }
        self.start().await;
        self.put_up(at).await;
    }

    /// Restores the orchestrator's mounts, except the one that step `at` of the act takes down.
    pub async fn put_up(&mut self, at: usize) {
        let falling = self.scenario.act.get(at).and_then(|step| step.takes_down());
        let falling: Vec<_> = falling.into_iter().collect();
        let (driver, csi) = running(&self.running);
        self.world.restore(driver, csi, &falling).await;
    }

    /// Runs the rest of the act from step `at`, as an orchestrator does. Then checks everything the
    /// driver has acknowledged, deletes everything, and requires that nothing is left.
    pub async fn finish(&mut self, at: usize) {
        let rest: &[Step] = self.scenario.act.get(at..).unwrap_or_default();
        let (driver, csi) = running(&self.running);
        self.world.insist_all(driver, csi, rest).await;
        self.world.restore(driver, csi, &[]).await;
        self.world.verify(driver, csi).await;
        self.world.tear_down(driver, csi).await;
        let leaks = self.leaks.as_ref().expect("taken at the beginning");
        leaks.assert_none(&[&self.pool], driver);
    }
}

/// A borrow of this field alone, so that the world can change meanwhile.
fn running(running: &Option<(Driver, Csi)>) -> &(Driver, Csi) {
    running.as_ref().expect("a driver runs")
}

/// Runs `act` and returns the message of a panic as an error, so that a test of many scenarios
/// continues with the next one.
pub async fn caught<T>(act: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(act).catch_unwind().await.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        text.unwrap_or_else(|| "a panic without words".to_owned())
    })
}

//! One scenario's machine: a pool, a mount namespace, and the drivers that start and stop on them.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use tonic::Status;

use crate::client::Csi;
use crate::driver::{Dead, Driver, DriverSpec, failpoints_binary};
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
    /// What the orchestrator believes.
    pub world: World,
    driver: Option<Driver>,
    csi: Option<Csi>,
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
            driver: None,
            csi: None,
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
        DriverSpec::new(&self.scratch, &[&self.pool])
            .binary(failpoints_binary())
            .inside(&self.namespace)
    }

    /// Starts an undisturbed driver.
    pub async fn start(&mut self) {
        let driver = self.spec().start();
        self.csi = Some(driver.csi().await);
        self.driver = Some(driver);
    }

    /// Starts a driver with fail points; returns how it ended if it did not start to serve.
    pub async fn start_disturbed(&mut self, failpoints: String) -> Result<(), Dead> {
        let driver = self.spec().failpoints(failpoints).try_start()?;
        self.csi = Some(driver.csi().await);
        self.driver = Some(driver);
        Ok(())
    }

    /// The running driver.
    pub fn driver(&self) -> &Driver {
        self.driver.as_ref().expect("a driver runs")
    }

    /// The running driver, for ending it.
    pub fn driver_mut(&mut self) -> &mut Driver {
        self.driver.as_mut().expect("a driver runs")
    }

    /// A client of the running driver.
    pub fn csi(&self) -> &Csi {
        self.csi.as_ref().expect("a driver runs")
    }

    /// Stops the driver as a service manager does.
    pub fn stop(&mut self) {
        self.csi = None;
        self.driver.take().expect("a driver runs").stop();
    }

    /// Runs the scenario's preparation with an undisturbed driver.
    pub async fn prepare(&mut self) {
        let steps = self.scenario.prepare;
        let (driver, csi) = (self.driver.as_ref(), self.csi.as_ref());
        let (driver, csi) = (driver.expect("a driver runs"), csi.expect("a driver runs"));
        self.world.insist_all(driver, csi, steps).await;
    }

    /// Runs the act once, without retries.
    pub async fn act(&mut self) -> Ended {
        let steps = self.scenario.act;
        for (at, step) in steps.iter().enumerate() {
            let driver = self.driver.as_ref().expect("a driver runs");
            let csi = self.csi.as_ref().expect("a driver runs");
            if let Err(status) = self.world.apply(driver, csi, *step).await {
                let died = self.driver_mut().wait_ended(AFTERMATH).is_some();
                return if died { Ended::Died(at) } else { Ended::Failed(at, status) };
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
        self.csi = None;
        self.driver = None;
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
        let (driver, csi) = (self.driver.as_ref(), self.csi.as_ref());
        let (driver, csi) = (driver.expect("it was started"), csi.expect("it was started"));
        self.world.restore(driver, csi, &falling).await;
    }

    /// Runs the rest of the act from step `at`, as an orchestrator does. Then checks everything the
    /// orchestrator believes, deletes everything, and requires that nothing is left.
    pub async fn finish(&mut self, at: usize) {
        let rest: &[Step] = self.scenario.act.get(at..).unwrap_or_default();
        let (driver, csi) = (self.driver.as_ref(), self.csi.as_ref());
        let (driver, csi) = (driver.expect("a driver runs"), csi.expect("a driver runs"));
        self.world.insist_all(driver, csi, rest).await;
        self.world.restore(driver, csi, &[]).await;
        self.world.verify(driver, csi).await;
        self.world.tear_down(driver, csi).await;
        let leaks = self.leaks.as_ref().expect("taken at the beginning");
        leaks.assert_none(&[&self.pool], driver);
    }
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

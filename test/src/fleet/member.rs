//! A node of a fleet, and a pod with controllers.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::front::process::{self, Controllers};
use crate::memory::MemoryDriver;

/// A node: its driver and its controllers' pod.
pub struct Member {
    /// The node's name, and the pod's.
    pub node: String,
    /// Its driver.
    pub driver: MemoryDriver,
    pub(super) pod: Pod,
}

impl Deref for Member {
    type Target = Pod;

    fn deref(&self) -> &Pod {
        &self.pod
    }
}

/// A pod whose controllers may be stopped.
pub struct Pod {
    name: String,
    metrics: String,
    dir: PathBuf,
    namespace: String,
    args: Vec<String>,
    controllers: Mutex<Option<Controllers>>,
}

impl Pod {
    pub(super) fn new(
        name: String,
        metrics: String,
        dir: PathBuf,
        namespace: String,
        args: Vec<String>,
    ) -> Pod {
        Pod {
            name,
            metrics,
            dir,
            namespace,
            args,
            controllers: Mutex::new(None),
        }
    }

    /// The pod's name, used as its lease identity.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn running(&self) -> MutexGuard<'_, Option<Controllers>> {
        self.controllers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts its controllers. Started again, they are the same container in the same pod.
    pub fn start(&self) {
        let started = Controllers::in_pod(&self.dir, &self.namespace, Some(&self.name), &self.args);
        *self.running() = Some(started);
    }

    /// SIGKILL.
    pub fn kill(&self) {
        if let Some(mut controllers) = self.running().take() {
            controllers.kill();
        }
    }

    /// Stops its controllers as kubelet does; they must end well.
    pub fn stop(&self) {
        if let Some(controllers) = self.running().take() {
            controllers.stop();
        }
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.running().as_ref().expect("they run").pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.running().as_ref().expect("they run").resume();
    }

    /// The process of its controllers.
    pub fn pid(&self) -> Option<u32> {
        self.running().as_ref().map(Controllers::pid)
    }

    /// What its controllers have logged.
    pub fn log(&self) -> String {
        process::log(&self.dir)
    }

    /// What its controllers count.
    pub fn metrics(&self) -> String {
        process::http(&self.metrics, "/metrics")
    }

    pub(super) fn assert_running(&self) {
        let ended = self.running().as_mut().and_then(Controllers::ended);
        if let Some(status) = ended {
            panic!("{} ended with {status}:\n{}", self.name, self.tail());
        }
    }

    /// The end of the log.
    pub fn tail(&self) -> String {
        process::tail(&self.dir)
    }

    /// SIGTERM, if they run.
    pub(super) fn ask_to_stop(&self) {
        if let Some(controllers) = &*self.running() {
            controllers.terminate();
        }
    }

    /// Waits for the end that was asked for.
    pub(super) fn stopped(&self) {
        if let Some(controllers) = self.running().take() {
            controllers.wait();
        }
    }
}

//! A node of a fleet, and a pod with controllers.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::front::process::{self, Controllers};
use crate::memory::MemoryDriver;

/// A node: its driver and its controllers' pod.
pub struct Member {
    /// The name of the node and of the pod.
    pub node: String,
    /// The node's driver.
    pub driver: MemoryDriver,
    pub(super) pod: Pod,
}

impl Deref for Member {
    type Target = Pod;

    fn deref(&self) -> &Pod {
        &self.pod
    }
}

/// A pod with controllers that a test can stop.
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
        Pod { name, metrics, dir, namespace, args, controllers: Mutex::new(None) }
    }

    /// The pod's name, used as its lease identity.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn running(&self) -> MutexGuard<'_, Option<Controllers>> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the controllers. A later start counts as the same container in the same pod.
    pub fn start(&self) {
        let started = Controllers::in_pod(&self.dir, &self.namespace, Some(&self.name), &self.args);
        *self.running() = Some(started);
    }

    /// Sends SIGKILL.
    pub fn kill(&self) {
        if let Some(mut controllers) = self.running().take() {
            controllers.kill();
        }
    }

    /// Stops the controllers as kubelet does; they must end with success.
    pub fn stop(&self) {
        if let Some(controllers) = self.running().take() {
            controllers.stop();
        }
    }

    /// Sends SIGSTOP.
    pub fn pause(&self) {
        self.running().as_ref().expect("they run").pause();
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.running().as_ref().expect("they run").resume();
    }

    /// The process ID of the controllers.
    pub fn pid(&self) -> Option<u32> {
        self.running().as_ref().map(Controllers::pid)
    }

    /// The log of the controllers.
    pub fn log(&self) -> String {
        process::log(&self.dir)
    }

    /// The metrics of the controllers.
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

    /// Sends SIGTERM if the controllers run.
    pub(super) fn ask_to_stop(&self) {
        if let Some(controllers) = &*self.running() {
            controllers.terminate();
        }
    }

    /// Waits for the end after [`Pod::ask_to_stop`].
    pub(super) fn stopped(&self) {
        if let Some(controllers) = self.running().take() {
            controllers.wait();
        }
    }
}

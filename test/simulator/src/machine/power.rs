//! A node that stops as a whole, and starts again.

use tokio::task::JoinSet;

use crate::door::Doors;
use crate::machine::Machine;

impl Machine {
    /// Stops the node: driver, kubelet, loop devices and mounts are gone at once. The disk stays,
    /// and has all that was written.
    pub(crate) async fn stop(&mut self) {
        self.kubelet_task = JoinSet::new();
        self.kill().await;
        self.site.kernel.reboot();
        self.kubelet = self.kubelet.after_reboot();
        self.is_off = true;
    }

    /// Starts the node, unless it runs.
    pub(crate) fn boot(&mut self, doors: &Doors) {
        if !self.is_off {
            return;
        }
        self.is_off = false;
        self.begin(doors);
        self.kubelet_task
            .spawn(self.kubelet.clone().run(doors.writes()));
    }
}

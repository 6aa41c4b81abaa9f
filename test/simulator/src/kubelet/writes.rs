//! What running pods write to their volumes, as far as their kubelet knows of it.

use tokio::time::Instant;

use super::wanted::Wanted;
use super::{Kubelet, Published};
use crate::stamps;

impl Kubelet {
    /// Lets a running pod write to its volumes: at its start, and every few minutes.
    pub(super) fn write_when_due(&self, volumes: &[Wanted]) {
        let now = Instant::now();
        let mut state = self.state.lock();
        for one in volumes {
            let (key, target) = (one.key(), self.target(one));
            if state.writes.get(&key).is_some_and(|next| *next > now) {
                continue;
            }
            let pause = stamps::write(self.node, &one.handle, &target);
            state.writes.insert(key, now + pause);
        }
    }

    /// Lets a pod write once more before it ends, if it runs.
    pub(super) fn write_last(&self, key: &(String, String), published: &Published) {
        let is_running = self.state.lock().writes.remove(key).is_some();
        if is_running {
            stamps::write(self.node, &published.handle, &published.target);
        }
    }
}

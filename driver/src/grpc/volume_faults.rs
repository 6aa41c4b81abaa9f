//! The faults of claims. No RPC carries them: the controllers in this process request them. They lock
//! the volume as an RPC does.

use std::time::Duration;

use hostloop_controllers::claim_faults::{FaultReport, FaultRequest};
use tonic::Status;

use super::Server;
use super::operation_locks::{Fingerprint, Key, Operation};
use super::pool_threads::{Lane, Work};
use crate::faults;

/// The name of such a change, for RPCs that find the volume in use.
const METHOD: &str = "a fault that a claim asks for";
/// How long a change waits for RPCs under way.
const WAIT: Duration = Duration::from_secs(10);

impl Server {
    /// True if volumes may have the faults that claims ask for.
    pub fn allows_faults(&self) -> bool {
        self.node.config.faults
    }

    /// Gives a volume the fault that its claim asks for, or ends it. A volume without a fault to
    /// begin or to end is neither locked nor looked at.
    pub fn change_fault(
        &self,
        request: FaultRequest,
    ) -> impl Future<Output = Result<FaultReport, Status>> + Send + use<> {
        let dispatcher = self.dispatcher.clone();
        async move {
            let (volume, requested) = (&request.volume, request.fault.as_ref());
            if let Some(report) = faults::at_rest(&dispatcher.pools, volume, requested) {
                return Ok(report);
            }
            let lane = Lane::of_ids(&dispatcher.pools, [request.volume.as_str()]);
            let threads = dispatcher.pool_threads.of(&lane, Work::Change);
            let operation = Operation {
                method: METHOD,
                holds: Key::volume_mount(&request.volume),
                fingerprint: Fingerprint::of(format!("{request:?}").as_bytes()),
                wait_limit: WAIT,
                namespace: request.namespace.clone(),
                long: false,
                grace: None,
                then: None,
            };
            let (pool_threads, pools) = (dispatcher.pool_threads.clone(), dispatcher.pools.clone());
            dispatcher
                .locks
                .run(threads, operation, move || {
                    pool_threads.run(&lane, Work::Change, || {
                        faults::reconcile(&pools, &request.volume, request.fault.as_ref())
                    })
                })
                .await
        }
    }
}

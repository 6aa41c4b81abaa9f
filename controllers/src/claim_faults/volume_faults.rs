//! The driver's part in faults, which CSI can't express.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tonic::Status;

use crate::api::claim_fault::ClaimFault;

/// The fault that a volume is to have.
#[derive(Clone, Debug)]
pub struct FaultRequest {
    /// The volume ID in CSI.
    pub volume: String,
    /// The namespace of the claim.
    pub namespace: String,
    /// The fault; `None` ends any.
    pub fault: Option<ClaimFault>,
}

/// The state of a volume's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultState {
    /// It has none.
    Absent,
    /// No pod uses the volume on this node yet.
    Waiting,
    /// It has the fault.
    Active,
    /// The fault is over, and is not repeated.
    Over,
    /// The time of the fault has passed, and the volume works again.
    Expired,
    /// The fault was taken away, and the volume works again.
    Healed,
    /// The fault has ended, and the volume works once its pods are gone.
    NeedsRestage,
    /// The volume can't have the fault, or may not.
    Refused,
}

impl FaultState {
    /// The name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FaultState::Absent => "absent",
            FaultState::Waiting => "waiting",
            FaultState::Active => "active",
            FaultState::Over => "over",
            FaultState::Expired => "expired",
            FaultState::Healed => "healed",
            FaultState::NeedsRestage => "needs-restage",
            FaultState::Refused => "refused",
        }
    }
}

/// What the driver found, or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultReport {
    pub state: FaultState,
    /// A sentence for people, which is the same as long as the state is.
    pub message: String,
    /// When to ask again, if nothing changes before.
    pub again: Option<Duration>,
}

impl FaultReport {
    /// There is no fault.
    pub fn none() -> Self {
        FaultReport {
            state: FaultState::Absent,
            message: String::new(),
            again: None,
        }
    }

    /// True if the volume has a fault now.
    pub(super) fn is_active(&self) -> bool {
        self.state == FaultState::Active
    }
}

type Apply = dyn Fn(FaultRequest) -> BoxFuture<'static, Result<FaultReport, Status>> + Send + Sync;
type Faulty = dyn Fn() -> Vec<String> + Send + Sync;

/// A driver in the same process.
struct LocalDriver {
    is_enabled: bool,
    apply: Box<Apply>,
    faulty: Box<Faulty>,
}

/// Gives volumes of a driver in the same process their faults. Clones share it. Without such a
/// driver there are none.
#[derive(Clone, Default)]
pub struct VolumeFaults(Option<Arc<LocalDriver>>);

impl VolumeFaults {
    /// `is_enabled` is `--enable-faults`. `apply` gives one volume the requested fault, and
    /// `faulty` lists the IDs of the volumes with a recorded fault, from memory.
    pub fn within(
        is_enabled: bool,
        apply: impl Fn(FaultRequest) -> BoxFuture<'static, Result<FaultReport, Status>>
        + Send
        + Sync
        + 'static,
        faulty: impl Fn() -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        VolumeFaults(Some(Arc::new(LocalDriver {
            is_enabled,
            apply: Box::new(apply),
            faulty: Box::new(faulty),
        })))
    }

    /// True if the driver is in this process.
    pub(crate) fn is_here(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.0.as_ref().is_some_and(|driver| driver.is_enabled)
    }

    pub(super) fn faulty(&self) -> Vec<String> {
        self.0
            .as_ref()
            .map(|driver| (driver.faulty)())
            .unwrap_or_default()
    }

    pub(super) async fn apply(&self, request: FaultRequest) -> Result<FaultReport, Status> {
        match &self.0 {
            Some(driver) => (driver.apply)(request).await,
            None => Ok(FaultReport::none()),
        }
    }
}

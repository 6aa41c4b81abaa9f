//! What the CSI services report in `/metrics`.

use std::fmt;
use std::sync::Arc;

use super::metrics::{self, Calls};
use super::pool_metrics;
use crate::blocking::Blocking;
use crate::storage::Pools;

/// The part of the CSI services that the HTTP endpoint reports.
#[derive(Clone)]
pub struct ReportedServices {
    pub(crate) calls: Arc<Calls>,
    pub(crate) pools: Arc<Pools>,
    pub(crate) blocking: Blocking,
}

impl ReportedServices {
    /// Writes the metrics of calls and pools, without the end marker.
    pub(crate) async fn metrics(&self, text: &mut String) -> fmt::Result {
        let pools = pool_metrics::gauges(self.pools.clone(), &self.blocking).await;
        metrics::render(text, &self.calls, &pools)
    }
}

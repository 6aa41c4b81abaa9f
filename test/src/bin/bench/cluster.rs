//! The controllers on a real Kubernetes: how quickly claims get their volumes, against the time
//! that the cluster itself needs, and the deployed container's memory and CPU.

pub(crate) mod claims;
pub(crate) mod floors;
pub(crate) mod ground;
mod pods;

use hostloop_test::machine;

use crate::measure::Figure;
use crate::runtime::Runtime;

/// The driver's name.
const DRIVER: &str = "hostloop.csi.dev";

/// The figures. Each half has a cluster of its own: claims need no node, and limits raised; pods
/// need one, at the pace of a cluster out of the box.
pub(crate) fn figures(runtime: &Runtime) -> Vec<Figure> {
    machine::require();
    let mut figures = claims::figures(runtime);
    figures.extend(pods::figures(runtime));
    figures
}

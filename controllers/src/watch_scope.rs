//! Decides how much of the cluster a node watches, when every node has its own controllers.
//!
//! The node watches only objects with its label [`NODE_LABEL`](crate::api::scope::NODE_LABEL),
//! or `managed-by` for snapshot contents. So a change that concerns one node is not sent to a
//! hundred. The leader writes the labels. Two fallbacks cover a missing leader:
//!
//! - After a long time without a leader, the node watches everything, and each controller picks its
//!   own objects as usual. When a leader exists again, the watches become narrow again. The delays
//!   are jittered, so that not all nodes list everything at once.
//! - From time to time, a node lists unlabelled objects, and labels its own.

use crate::cli::{Args, LeaderTasks};
use crate::client::Leadership;
use crate::controller::Context;
use crate::roles::Role;

mod fallback;
mod label_repair;

/// True if a node watches only objects with its label. The leader writes the labels, so without an
/// election there may be none.
pub(crate) fn is_narrow(args: &Args, leader: &Leadership) -> bool {
    leader.is_elected() && args.controllers.has(Role::Placement)
}

/// Sets the watch scope until `context.stop`. If another process runs the cluster-wide tasks, only
/// that one labels contents, because the label decides who may write their status.
pub(crate) async fn run(context: Context, tasks: LeaderTasks) {
    let Some(node) = context.scope.node().map(str::to_owned) else {
        return context.stop.cancelled().await;
    };
    let contents = tasks != LeaderTasks::Elsewhere;
    tokio::join!(
        fallback::run(&context),
        label_repair::run(&context, &node, contents)
    );
}

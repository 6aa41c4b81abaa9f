//! What a node sees, where every node has loops of its own.
//!
//! Its watches show what the label [`NODE_LABEL`](crate::runtime::scope::NODE_LABEL) (of contents,
//! `managed-by`) says is its own: what concerns one node is not told to a hundred. The leader writes
//! the labels. So that nobody waits for ever on the leader:
//!
//! - Without a leader for long, the watches are widened to everything, and each loop picks what is
//!   its own as it always does; once there is a leader again they are narrowed. Chance decides when,
//!   so that not all nodes list everything at once.
//! - Now and then a node lists what has no label, and labels what is its own.

use crate::cli::{Args, LeaderTasks};
use crate::roles::Role;
use crate::runtime::{Context, Leadership};

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

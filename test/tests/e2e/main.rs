//! End to end: pods on a real cluster, with the deployed manifest and image.
//!
//! All tests share one cluster of two nodes. The second node is like one of kind: it shares the
//! kernel and its loop devices with the first, and no files. Tests that only affect their own
//! namespace run in parallel. Afterwards, tests that disturb one node (its driver, its kubelet) run
//! in parallel on different nodes, and tests that take away a shared part (the controller, a node,
//! the API server) run alone. Then the driver is deployed again with attachment.
//! At the end, the audit log shows whether the driver's rights were sufficient and minimal.
//!
//! The first tests run with the shipped manifest, which has a plain directory as its pool. The
//! other tests have bounded pools, so that a node can be full.
//!
//!     cargo test -p hostloop-test --test e2e [-- NAME…]
//!
//! - `HOSTLOOP_IMAGE=FILE`: uses this image archive instead of one made from `HOSTLOOP_BIN`.
//! - `HOSTLOOP_CLUSTER=NAME`: uses a running cluster, which stays up with the deployment.
//! - `E2E_AT_ONCE=4`: the number of parallel tests.
//! - `E2E_OUTAGE=60`: how many seconds the API server is away. The driver must survive ten minutes;
//!   one minute shows the same, except for caches and tokens with a longer life.

mod attached;
mod attack;
mod attributes;
mod bad;
mod claims;
mod examples;
mod expansion;
mod filesystems;
mod inline;
mod node;
mod nodes;
mod nodes_gone;
mod nodes_room;
mod objects;
mod outage;
mod pods;
mod rights;
mod runner;
mod secrets;
mod shared;
mod site;
mod snapshots;
mod space;
mod world;

use runner::{Phase, Test};
use world::World;

/// Test functions, each under its own name.
macro_rules! tests {
    ($($module:ident: $($name:ident),+ $(,)?;)*) => {
        &[$($(Test { name: concat!(stringify!($module), "::", stringify!($name)), run: $module::$name }),+),*]
    };
}

/// In parallel, with the shipped manifest.
const SHIPPED: &[Test] = tests! {
    snapshots: a_snapshot_is_restored_and_larger_and_a_volume_cloned;
    claims: a_claim_goes_through_a_pod_and_back;
    filesystems: read_only;
    examples:
        every_file_has_a_test,
        rwx,
        snapshot,
        statefulset,
        expand,
        attributes,
        claim,
        clone,
        group_snapshot,
        rwop,
        block,
        powercut,
        slow_disk,
        inline;
};

/// Ordered by duration: the longest tests come first, so that the others run beside them.
const TOGETHER: &[Test] = tests! {
    pods: volume_stats_are_in_kubelets_metrics;
    nodes: copies_go_where_their_source_is, snapshots_and_expansions_on_each_node;
    snapshots: a_group_is_snapshotted_at_one_moment;
    shared: two_volumes_share_one_handle;
    expansion:
        xfs_grows_while_its_pod_writes,
        btrfs_grows_while_its_pod_writes,
        ext4_grows_before_its_next_pod;
    claims: capacity_is_published_for_a_class;
    filesystems: xfs, btrfs, block;
    inline: inline_volumes_come_and_go_with_their_pod;
    pods:
        one_pod_at_a_time_has_a_read_write_once_pod_volume,
        an_ordinary_user_writes_by_its_fs_group,
        forced_deletion_leaves_nothing;
    secrets:
        secrets_of_staging_and_publishing_are_delivered,
        secrets_of_provisioning_are_read_and_missing_ones_named;
    attributes: attributes_change_under_a_running_pod;
    nodes:
        replicas_spread_and_their_volumes_with_them,
        claims_go_where_their_class_allows,
        a_group_over_two_nodes_says_so;
    bad: what_cannot_be_made_says_why;
    attack:
        a_pod_cannot_choose_how_its_volume_is_made,
        a_pod_that_detaches_its_device_reaches_no_other_volume;
};

/// In parallel, but one test at a time on each node: a test disturbs only the node it is on.
const ONE_NODE: &[Test] = tests! {
    node:
        pods_notice_nothing_of_a_new_driver,
        kubelet_is_restarted,
        a_new_driver_finishes_what_the_last_one_began,
        a_drained_node_gets_its_pod_back;
};

/// One test at a time.
const ALONE: &[Test] = tests! {
    nodes: immediate_claims_are_spread_without_a_race;
    nodes_room:
        claims_go_where_there_is_room,
        a_claim_moves_on_from_a_full_node,
        capacity_stays_published_over_an_upgrade;
    nodes_gone: claims_are_moved_from_a_slow_node;
    outage: the_api_server_goes_away;
    // This test shortens grace periods, and the next deployment keeps them.
    nodes_gone: a_node_goes_and_returns;
};

/// In parallel, with attachment: one test of each class above.
const ATTACHED: &[Test] = tests! {
    attached: volumes_are_attached_and_detached;
    filesystems: block;
    expansion: btrfs_grows_while_its_pod_writes;
    shared: two_volumes_share_one_handle;
    nodes: the_api_server_places_claims;
};

/// One test at a time, with attachment.
const ATTACHED_ALONE: &[Test] = tests! {
    nodes_gone: a_node_goes_and_returns;
};

/// In parallel, with attachment, with fewer controllers and volumes. One of them takes away the
/// second node, and the others need only the first.
const LIMITED: &[Test] = tests! {
    nodes_gone: an_out_of_service_node_gives_up_its_pods;
    attached:
        a_full_node_takes_no_more_volumes,
        controllers_that_are_left_out_do_nothing;
};

/// Results of the whole run.
const LAST: &[Test] = tests! {
    rights:
        nothing_was_forbidden,
        nodes_did_no_leader_work,
        no_right_is_idle;
};

fn main() {
    let phases = [
        Phase::beside_each_other("shipped/", SHIPPED),
        Phase::beside_each_other("", TOGETHER).prepared(World::deploy_bounded),
        Phase::beside_each_other("", ONE_NODE).prepared(World::deploy_bounded),
        Phase::in_sequence("", ALONE).prepared(World::deploy_bounded),
        Phase::beside_each_other("attached/", ATTACHED).prepared(World::deploy_attached),
        Phase::in_sequence("attached/", ATTACHED_ALONE).prepared(World::deploy_attached),
        Phase::beside_each_other("attached/", LIMITED).prepared(World::deploy_limited),
        Phase::in_sequence("", LAST),
    ];
    runner::run(&phases);
}

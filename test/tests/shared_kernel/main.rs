//! Volumes that the nodes of one kernel share: they follow their pods, and several nodes use one at once.
//! On three nodes like those of kind, each with its own mounts, files and `/dev`, over this machine's kernel.
//!
//! The first test is a sample of a minute. The others take minutes each.

mod databases;
mod held;
mod moves;
mod restarts;
mod site;
mod together;

use site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_sample() {
    let site = Site::up(None);
    together::three_nodes_use_one_volume(&site).await;
    moves::a_writer_moves(&site, 2).await;
    site.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_beside_a_restart_in_place() {
    let site = Site::up(None);
    moves::restarts_in_place(&site, 10);
    moves::a_writer_moves(&site, 10).await;
    site.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_moves_of_postgresql_lose_nothing() {
    let site = Site::up(None);
    databases::postgresql_moves(&site, 20).await;
    site.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_pods_on_three_nodes_write_one_sqlite() {
    let site = Site::up(None);
    databases::five_pods_write_one_sqlite(&site);
    site.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_and_growth_reach_all_nodes() {
    let site = Site::up(None);
    together::copies_are_used_on_any_node(&site).await;
    together::growth_shows_on_all_nodes(&site).await;
    together::faults_are_refused_by_name(&site).await;
    site.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_end_and_return() {
    let site = Site::up(None);
    held::a_node_that_has_a_volume_keeps_it(&site).await;
    restarts::users_go_on_without_the_owner(&site).await;
    restarts::volumes_return_after_all_nodes_have_ended(&site).await;
    site.end().await;
}

/// The oldest version: its API server has to read the policies.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_kubernetes() {
    let site = Site::up(Some("1.30"));
    together::three_nodes_use_one_volume(&site).await;
    moves::a_writer_moves(&site, 2).await;
    site.end().await;
}

use hostloop_report::status::Report;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::check::decide::testing::{DRIVER, good, marks, object};
use crate::check::facts::Unknown;
use crate::check::line::Mark::{self, *};
use crate::node_pods::NodeReport;

/// What a node reports about the kernel that it shares.
fn report(node: &str, kernel: Value) -> NodeReport {
    let report: Report = object(
        json!({"pools": [], "volumes": [], "snapshots": [], "groups": [],
        "loops": [], "mounts": [], "orphans": [], "kernel": kernel}),
    );
    NodeReport {
        node: node.to_owned(),
        pod: format!("hostloop-{node}"),
        report: Ok(report),
        took: Duration::ZERO,
    }
}

fn kernel(seen: &[&str], shows_diskseq: bool) -> Value {
    json!({"name": "kernel", "listed": ["n1", "n2"], "seen": seen, "shows_diskseq": shows_diskseq})
}

/// Two nodes that share a kernel, and nothing that is wrong.
fn sharing() -> Facts {
    let mut facts = good();
    facts.kernels = Ok(Some(object(
        json!({"metadata": {"name": "hostloop-kernels"},
        "data": {"kernel": "n1 n2 stopped"}}),
    )));
    facts.csi_driver = Ok(Some(object(json!({"metadata": {"name": DRIVER},
        "spec": {"attachRequired": true}}))));
    facts.reports = ["n1", "n2"]
        .map(|node| report(node, kernel(&["n1", "n2"], true)))
        .into();
    for node in ["n1", "n2"] {
        let period = Ok(Duration::from_secs(1));
        facts.status_periods.insert(node.to_owned(), period);
    }
    facts
}

#[track_caller]
fn expect(facts: &Facts, mark: Mark, text: &str) {
    let lines = lines(facts);
    assert!(
        lines
            .iter()
            .any(|line| line.mark == mark && line.text.contains(text)),
        "{text:?} is not in {lines:?}"
    );
}

#[test]
fn nodes_that_share_a_kernel_pass() {
    let lines = lines(&sharing());
    assert_eq!(marks(&lines), [Passed], "{lines:?}");
    assert_eq!(lines[0].text, "Nodes share kernel kernel: n1, n2");
}

#[test]
fn a_cluster_without_shared_kernels_has_no_line() {
    assert_eq!(lines(&good()), []);
    let mut facts = good();
    let class = json!({"metadata": {"name": "mine"}, "provisioner": DRIVER,
        "parameters": {"reach": "kernel"}});
    facts.classes = Ok(vec![object(class)]);
    expect(&facts, Failed, "which these need: StorageClass mine");
}

#[rstest]
#[case::another_node(json!({"kernel": "n1"}), Warning, "hostloop-kernels: n2")]
#[case::in_two(json!({"kernel": "n1 n2", "other": "n2"}), Failed, "several kernels: n2")]
#[case::too_many(json!({"kernel": "n1 n2 a b c d e f g h i j k l m n o"}), Failed, "has 17 nodes")]
#[case::none(json!({}), Warning, "hostloop-kernels: n1, n2")]
fn the_list_is_compared_with_the_nodes(
    #[case] data: Value,
    #[case] mark: Mark,
    #[case] text: &str,
) {
    let mut facts = sharing();
    facts.kernels = Ok(Some(object(json!({"data": data}))));
    expect(&facts, mark, text);
}

#[rstest]
#[case::nothing(json!(null), Warning, "that they have kernel kernel: n2")]
#[case::no_marker(kernel(&["n2"], true), Failed, "n2 shares no kernel with n1")]
#[case::no_numbers(kernel(&["n1", "n2"], false), Failed, "does not number loop devices: n2")]
fn what_a_node_sees_is_compared_with_the_list(
    #[case] second: Value,
    #[case] mark: Mark,
    #[case] text: &str,
) {
    let mut facts = sharing();
    facts.reports[1] = report("n2", second);
    expect(&facts, mark, text);
}

#[test]
fn volumes_that_are_not_attached_fail() {
    let mut facts = sharing();
    facts.csi_driver = Ok(Some(object(json!({"metadata": {"name": DRIVER},
        "spec": {"attachRequired": false}}))));
    expect(&facts, Failed, "Volumes are not attached");
}

#[test]
fn a_slow_kubelet_is_a_warning() {
    let mut facts = sharing();
    let period = Ok(Duration::from_secs(10));
    facts.status_periods.insert("n2".to_owned(), period);
    expect(
        &facts,
        Warning,
        "only every 10 s, and pods wait so long for a volume: n2",
    );
    let why = Unknown::Forbidden("get nodes/proxy in the whole cluster".to_owned());
    facts.status_periods.insert("n1".to_owned(), Err(why));
    expect(&facts, Skipped, "How often kubelet reports of n1: skipped");
}

//! The pods that serve fault disks.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{driver_container, pods_by_node};
use crate::check::facts::Facts;
use crate::check::line::{Line, names};
use crate::{FAULT_DISKS, NAME_LABEL};

/// Pods that nothing needs any more, or that an update has left. To end one is a power cut of the
/// volumes on its disks, so that is left to a person.
pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    // Another section says why they are unknown.
    let Ok(pods) = &facts.pods else {
        return Vec::new();
    };
    let drivers = pods_by_node(pods);
    let (mut unneeded, mut outdated) = (Vec::new(), Vec::new());
    for (node, server) in servers_by_node(pods) {
        let driver = drivers.get(node).and_then(|pod| image(pod));
        if runs_without_faults(facts, node) {
            unneeded.push(node);
        } else if driver.is_some() && driver != image(server) {
            outdated.push(node);
        }
    }
    let mut lines = Vec::new();
    if !unneeded.is_empty() {
        lines.push(Line::warning(
            format!(
                "Fault disks can be served, but the driver runs without --enable-faults: {}",
                names(unneeded)
            ),
            format!(
                "Remove DaemonSet {FAULT_DISKS}: kubectl hostloop install. It names the volumes \
                 that are on fault disks."
            ),
        ));
    }
    if !outdated.is_empty() {
        lines.push(Line::warning(
            format!(
                "The pods of fault disks run another image than the driver: {}",
                names(outdated)
            ),
            format!(
                "An update does not replace them. Delete the pod of {FAULT_DISKS} on each node, \
                 once no pod there uses a volume on a fault disk."
            ),
        ));
    }
    lines
}

fn servers_by_node(pods: &[Pod]) -> BTreeMap<&str, &Pod> {
    let (label, _) = NAME_LABEL;
    pods.iter()
        .filter(|pod| {
            pod.labels()
                .get(label)
                .is_some_and(|name| name == FAULT_DISKS)
        })
        .filter_map(|pod| Some((pod.spec.as_ref()?.node_name.as_deref()?, pod)))
        .collect()
}

fn image(pod: &Pod) -> Option<&str> {
    driver_container(pod.spec.as_ref()?)?.image.as_deref()
}

fn runs_without_faults(facts: &Facts, node: &str) -> bool {
    let machine = facts.machines.get(node);
    let faults = machine.and_then(|machine| machine.faults.as_ref().ok());
    faults.is_some_and(|faults| !faults.enabled)
}

#[cfg(test)]
mod tests {
    use hostloop_report::node_faults::NodeFaults;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::check::decide::testing::{good, node_pod, object};
    use crate::check::line::Mark;

    #[rstest]
    #[case::as_it_should_be(true, None, None)]
    #[case::after_an_update(true, Some("h:0.0.1"), Some("run another image than the driver: n1"))]
    #[case::is_not_needed(false, None, Some("without --enable-faults: n1"))]
    #[case::is_not_needed_and_old(false, Some("h:0.0.1"), Some("without --enable-faults: n1"))]
    fn a_pod_that_a_person_must_end_is_a_warning(
        #[case] enabled: bool,
        #[case] other: Option<&str>,
        #[case] expected: Option<&str>,
    ) {
        let mut facts = good();
        let driver: Pod = node_pod("n1");
        let image = other.or(image(&driver)).map(str::to_owned);
        let server: Pod = object(json!({
            "metadata": {"name": "s", "labels": {"app.kubernetes.io/name": "hostloop-fault-disks"}},
            "spec": {"nodeName": "n1", "containers": [
                {"name": "hostloop-fault-disks", "image": image, "args": ["fault-disks"]},
            ]},
        }));
        facts.pods = Ok(vec![driver, server]);
        if let Some(machine) = facts.machines.get_mut("n1") {
            machine.faults = Ok(NodeFaults {
                enabled,
                ..NodeFaults::default()
            });
        }
        let lines = lines(&facts);
        assert_eq!(lines.len(), usize::from(expected.is_some()), "{lines:?}");
        for line in lines {
            assert_eq!(line.mark, Mark::Warning);
            let words = expected.unwrap_or_default();
            assert!(line.text.ends_with(words), "{line:?}");
        }
    }

    #[test]
    fn a_node_without_such_a_pod_has_no_line() {
        assert_eq!(lines(&good()), []);
    }
}

//! A refusal for limits of inline volumes is true: a pod within them gets its volume.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::machine::Contents;
use crate::model::view::{items, name, namespace, text, uid};
use crate::oracle::advice::is_stuck;
use crate::oracle::inline_volumes::{excess, sizes_of};
use crate::oracle::objects::{Objects, state};
use crate::trace;
use crate::users::bytes;

/// Words of a refusal for one of the limits. The size of a single volume is another matter.
const OF_LIMITS: [&str; 2] = ["--max-inline-volumes", "--max-inline-total"];

/// The size of the smallest volume with the filesystem of inline volumes, in bytes.
const LEAST: u64 = 1 << 20;
/// A volume has whole blocks of so many bytes.
const BLOCK: u64 = 4096;

/// Checks after a quiet time what kubelets say of pods that do not run.
pub(super) fn are_true(cluster: &Cluster, objects: &Objects) {
    let stuck: Vec<&Value> = objects.pods.iter().filter(|pod| is_stuck(pod)).collect();
    for machine in &cluster.machines {
        let on_node = stuck
            .iter()
            .copied()
            .filter(|pod| text(pod, "/spec/nodeName") == machine.name());
        let (refused, others): (Vec<&Value>, Vec<&Value>) =
            on_node.partition(|pod| refusal(&cluster.complaints(uid(pod))).is_some());
        let contents = machine.contents();
        let there = beside(&contents, &others);
        for pod in refused {
            if is_within_limits(&there, pod) {
                trace::violation(format!(
                    "refused for limits of inline volumes: pod {} is within them beside {there:?}: \
                     {:?}; {}",
                    name(pod),
                    cluster.complaints(uid(pod)),
                    state(pod)
                ));
            }
        }
    }
}

/// What a kubelet says of the limits.
fn refusal(complaints: &[String]) -> Option<&String> {
    let mut complaints = complaints.iter();
    complaints.find(|said| OF_LIMITS.iter().any(|words| said.contains(words)))
}

/// The namespaces and sizes of the inline volumes that a node has, and of those that these pods wait
/// for: one of them may be counted while it is made.
fn beside<'a>(contents: &'a Contents, pods: &[&'a Value]) -> Vec<(&'a str, u64)> {
    let mut all = sizes_of(contents);
    all.extend(pods.iter().copied().flat_map(requested));
    all
}

/// The namespace and the sizes of the inline volumes that a pod requests.
fn requested(pod: &Value) -> impl Iterator<Item = (&str, u64)> {
    let inline = items(pod, "/spec/volumes").filter(|volume| !volume["csi"].is_null());
    inline.map(move |volume| {
        let size = bytes(&volume["csi"]["volumeAttributes"]["size"]);
        (namespace(pod), size.max(LEAST).next_multiple_of(BLOCK))
    })
}

/// True if a pod's inline volumes are within the limits beside others.
fn is_within_limits(there: &[(&str, u64)], pod: &Value) -> bool {
    let all: Vec<(&str, u64)> = there.iter().copied().chain(requested(pod)).collect();
    excess(&all).is_empty()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn pod(size: &str) -> Value {
        let inline = json!({"name": "v0", "csi": {"volumeAttributes": {"size": size}}});
        let other = json!({"name": "v1", "persistentVolumeClaim": {"claimName": "c1"}});
        json!({"metadata": {"name": "p1", "namespace": "u"}, "spec": {"volumes": [inline, other]}})
    }

    #[rstest]
    #[case::first(&[], "1", true)]
    #[case::second(&[("u", MIB)], "10Mi", true)]
    #[case::third(&[("u", MIB), ("u", MIB)], "1", false)]
    #[case::of_another_namespace(&[("v", MIB), ("v", MIB)], "1", true)]
    #[case::fifth_of_the_node(&[("v", MIB), ("v", MIB), ("w", MIB), ("w", MIB)], "1", false)]
    #[case::all_of_its_half(&[("u", 64 * MIB)], "64Mi", true)]
    #[case::more_than_its_half(&[("u", 64 * MIB)], "67108865", false)]
    #[case::smallest(&[("u", 127 * MIB)], "1", true)]
    #[case::less_than_the_smallest_is_left(&[("u", 127 * MIB + 4096)], "1", false)]
    fn pods_within_limits(
        #[case] there: &[(&str, u64)],
        #[case] size: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(is_within_limits(there, &pod(size)), expected);
    }

    #[test]
    fn refusals_for_limits_are_known_by_their_flags() {
        let of_limits = "code = ResourceExhausted desc = the node would have 5 inline volumes, and 4 \
                         are allowed (--max-inline-volumes)";
        for (said, expected) in [
            (of_limits, true),
            (
                "the pod's are too large together (--max-inline-total)",
                true,
            ),
            (
                "code = OutOfRange desc = 1Ti are too many (--max-inline-size)",
                false,
            ),
            ("code = ResourceExhausted desc = no room", false),
        ] {
            assert_eq!(refusal(&[said.to_owned()]).is_some(), expected, "{said}");
        }
    }

    #[test]
    fn a_volume_that_is_being_made_counts() {
        let contents = Contents::default();
        let (waiting, size) = (pod("10Mi"), 10 * MIB);
        assert_eq!(beside(&contents, &[&waiting]), [("u", size)]);
    }
}

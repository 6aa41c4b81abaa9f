//! The inline volumes of a node are within the limits of its driver. One namespace has half of what
//! the node may have.

use std::collections::BTreeMap;

use crate::cluster::Cluster;
use crate::machine::Contents;
use crate::machine::limits::{INLINE, INLINE_OF_NAMESPACE};
use crate::trace;

/// The parameter of an inline volume that names the namespace of its pod.
const NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";

/// Checks the records of all nodes.
pub(super) fn are_within_limits(cluster: &Cluster) {
    for machine in &cluster.machines {
        for wrong in excess(&sizes_of(&machine.contents())) {
            let node = machine.name();
            trace::violation(format!("too many inline volumes: {node} has {wrong}"));
        }
    }
}

/// The namespaces and sizes of the inline volumes that a node has.
pub(super) fn sizes_of(contents: &Contents) -> Vec<(&str, u64)> {
    let volumes = contents.volumes.iter();
    let inline = volumes.filter(|volume| volume.inline.is_some());
    inline
        .map(|volume| {
            let namespace = volume.parameters.get(NAMESPACE);
            let namespace = namespace.map_or("", String::as_str);
            (namespace, volume.capacity_bytes)
        })
        .collect()
}

/// What is too much of inline volumes with these namespaces and sizes.
pub(super) fn excess(sizes: &[(&str, u64)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut of_namespaces: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (namespace, bytes) in sizes {
        of_namespaces.entry(namespace).or_default().push(*bytes);
        if *bytes > INLINE.size {
            wrong.push(format!("one of {bytes} bytes"));
        }
    }
    let all: Vec<u64> = sizes.iter().map(|(_, bytes)| *bytes).collect();
    if exceeds(&all, INLINE.volumes, INLINE.total) {
        wrong.push(format!("{all:?} bytes"));
    }
    let half = INLINE.size.max(INLINE.total / 2);
    for (namespace, sizes) in of_namespaces {
        if !namespace.is_empty() && exceeds(&sizes, INLINE_OF_NAMESPACE, half) {
            wrong.push(format!("{sizes:?} bytes for the namespace {namespace}"));
        }
    }
    wrong
}

fn exceeds(sizes: &[u64], volumes: usize, total: u64) -> bool {
    sizes.len() > volumes || sizes.iter().sum::<u64>() > total
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[rstest]
    #[case::none(&[], 0)]
    #[case::half(&[("u", MIB), ("u", MIB)], 0)]
    #[case::more_than_half(&[("u", MIB), ("u", MIB), ("u", MIB)], 1)]
    #[case::of_two(&[("u", MIB), ("u", MIB), ("v", MIB), ("v", MIB)], 0)]
    #[case::of_three(&[("u", MIB), ("u", MIB), ("v", MIB), ("v", MIB), ("w", MIB)], 1)]
    #[case::largest(&[("u", 128 * MIB)], 0)]
    #[case::too_large(&[("u", 129 * MIB)], 2)]
    #[case::together(&[("u", 100 * MIB), ("u", 29 * MIB)], 1)]
    #[case::together_on_the_node(&[("u", 100 * MIB), ("v", 61 * MIB)], 1)]
    fn inline_volumes_beyond_limits(#[case] sizes: &[(&str, u64)], #[case] expected: usize) {
        let wrong = excess(sizes);
        assert_eq!(wrong.len(), expected, "{wrong:?}");
    }
}

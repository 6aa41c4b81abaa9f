//! Which distribution of Kubernetes a cluster is, and what follows from it.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

/// Kubelet's usual root directory.
pub(super) const KUBELET_DIR: &str = "/var/lib/kubelet";

/// A distribution of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Distribution {
    Kind,
    Minikube,
    K3s,
    Rke2,
    K0s,
    MicroK8s,
    Talos,
    Kubeadm,
    /// Any other, such as those of cloud providers.
    Other,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distribution::Kind => "kind",
            Distribution::Minikube => "minikube",
            Distribution::K3s => "k3s",
            Distribution::Rke2 => "RKE2",
            Distribution::K0s => "k0s",
            Distribution::MicroK8s => "MicroK8s",
            Distribution::Talos => "Talos",
            Distribution::Kubeadm => "kubeadm",
            Distribution::Other => "an unknown distribution",
        })
    }
}

impl Distribution {
    /// The distribution of one node, by its most specific sign. kind and minikube are made by
    /// kubeadm, so its sign comes last.
    pub(super) fn of(node: &Node) -> Distribution {
        let provider = node
            .spec
            .as_ref()
            .and_then(|spec| spec.provider_id.as_deref());
        let provider = provider.unwrap_or_default();
        let info = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        let kubelet = info
            .map(|info| info.kubelet_version.as_str())
            .unwrap_or_default();
        let os = info.map(|info| info.os_image.as_str()).unwrap_or_default();
        let is_kubeadm = node
            .annotations()
            .keys()
            .any(|annotation| annotation.starts_with("kubeadm.alpha.kubernetes.io/"));
        match node.labels() {
            _ if provider.starts_with("kind://") => Distribution::Kind,
            labels if labels.contains_key("minikube.k8s.io/name") => Distribution::Minikube,
            _ if kubelet.contains("+k3s") || provider.starts_with("k3s://") => Distribution::K3s,
            _ if kubelet.contains("+rke2") => Distribution::Rke2,
            _ if kubelet.contains("+k0s") => Distribution::K0s,
            labels if labels.contains_key("microk8s.io/cluster") => Distribution::MicroK8s,
            _ if os.starts_with("Talos") => Distribution::Talos,
            _ if is_kubeadm => Distribution::Kubeadm,
            _ => Distribution::Other,
        }
    }

    /// The distribution of most nodes. Of several as frequent, the first by name of the type.
    pub(super) fn of_most(nodes: &[Node]) -> Distribution {
        let mut counts: BTreeMap<Distribution, usize> = BTreeMap::new();
        for node in nodes {
            *counts.entry(Distribution::of(node)).or_default() += 1;
        }
        let most = counts.into_iter().rev().max_by_key(|(_, count)| *count);
        most.map_or(Distribution::Other, |(distribution, _)| distribution)
    }

    /// Kubelet's root directory: the usual one, unless the distribution is known to have its own.
    pub(super) fn kubelet_dir(self) -> &'static str {
        match self {
            Distribution::K0s => "/var/lib/k0s/kubelet",
            Distribution::MicroK8s => "/var/snap/microk8s/common/var/lib/kubelet",
            _ => KUBELET_DIR,
        }
    }

    /// The command on a node that loads an image archive from its standard input.
    pub(super) fn import_command(self) -> &'static str {
        match self {
            Distribution::K3s => "k3s ctr images import -",
            Distribution::Rke2 => {
                "/var/lib/rancher/rke2/bin/ctr --address /run/k3s/containerd/containerd.sock \
                 --namespace k8s.io images import -"
            }
            Distribution::K0s => "k0s ctr --namespace k8s.io images import -",
            Distribution::MicroK8s => "microk8s ctr images import -",
            _ => "ctr --namespace k8s.io images import -",
        }
    }

    /// True if `load` works on its clusters.
    pub(super) fn has_load_command(self) -> bool {
        matches!(self, Distribution::Kind | Distribution::Minikube)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(provider: &str, kubelet: &str, os: &str, label: &str, annotation: &str) -> Node {
        let node = json!({
            "metadata": {"name": "n", "labels": {label: "x"}, "annotations": {annotation: "x"}},
            "spec": {"providerID": provider},
            "status": {"nodeInfo": {"kubeletVersion": kubelet, "osImage": os}},
        });
        serde_json::from_value(node).unwrap()
    }

    const SOCKET: &str = "kubeadm.alpha.kubernetes.io/cri-socket";

    #[test]
    fn distributions_by_their_nodes() {
        for (provider, kubelet, os, label, annotation, distribution) in [
            (
                "kind://docker/kind/kind-worker",
                "v1.34.0",
                "Debian GNU/Linux 12",
                "a",
                SOCKET,
                Distribution::Kind,
            ),
            (
                "",
                "v1.34.0",
                "Ubuntu 22.04",
                "minikube.k8s.io/name",
                SOCKET,
                Distribution::Minikube,
            ),
            (
                "k3s://n",
                "v1.34.1+k3s1",
                "K3s v1.34.1+k3s1",
                "a",
                "b",
                Distribution::K3s,
            ),
            (
                "",
                "v1.33.1+k3s1",
                "Ubuntu 24.04",
                "a",
                "b",
                Distribution::K3s,
            ),
            (
                "",
                "v1.33.1+rke2r1",
                "Ubuntu 24.04",
                "a",
                "b",
                Distribution::Rke2,
            ),
            (
                "",
                "v1.34.1+k0s",
                "Alpine Linux v3.22",
                "a",
                "b",
                Distribution::K0s,
            ),
            (
                "",
                "v1.34.1",
                "Ubuntu 24.04",
                "microk8s.io/cluster",
                "b",
                Distribution::MicroK8s,
            ),
            (
                "",
                "v1.34.1",
                "Talos (v1.11.2)",
                "a",
                "b",
                Distribution::Talos,
            ),
            (
                "",
                "v1.34.1",
                "Debian GNU/Linux 13",
                "a",
                SOCKET,
                Distribution::Kubeadm,
            ),
            (
                "gce://p/z/n",
                "v1.34.1-gke.100",
                "Container-Optimized OS",
                "a",
                "b",
                Distribution::Other,
            ),
        ] {
            let node = node(provider, kubelet, os, label, annotation);
            assert_eq!(Distribution::of(&node), distribution);
        }
        assert_eq!(Distribution::of(&Node::default()), Distribution::Other);
    }

    #[test]
    fn most_nodes_decide() {
        let talos = || node("", "v1", "Talos (v1)", "a", "b");
        let k0s = || node("", "v1+k0s", "Alpine", "a", "b");
        for (nodes, distribution) in [
            (vec![], Distribution::Other),
            (vec![talos(), talos(), k0s()], Distribution::Talos),
            (vec![talos(), k0s(), k0s()], Distribution::K0s),
            (vec![talos(), k0s()], Distribution::K0s),
        ] {
            assert_eq!(Distribution::of_most(&nodes), distribution);
        }
    }
}

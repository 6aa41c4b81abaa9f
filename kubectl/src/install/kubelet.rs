//! Where kubelet's root directory is. The API server does not say, so this judges by signs.

use serde_json::Value;

use crate::distribution::{Distribution, KUBELET_DIR};
use crate::manifests::{ObjectKey, field};

/// A directory, and the sign for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KubeletDirectory {
    pub(super) directory: String,
    pub(super) how: String,
}

impl KubeletDirectory {
    fn new(directory: &str, how: impl Into<String>) -> KubeletDirectory {
        KubeletDirectory {
            directory: directory.to_owned(),
            how: how.into(),
        }
    }
}

/// The directory by the first of these signs: the person, the installed hostloop, a distribution
/// with a directory of its own, a DaemonSet that registers plugins, the default.
pub(super) fn find(
    chosen: Option<&str>,
    installed: Option<&str>,
    distribution: Distribution,
    daemon_sets: &[Value],
) -> KubeletDirectory {
    if let Some(directory) = chosen {
        return KubeletDirectory::new(directory, "by --kubelet-dir");
    }
    if let Some(directory) = installed {
        return KubeletDirectory::new(directory, "as installed");
    }
    let own = distribution.kubelet_dir();
    if own != KUBELET_DIR {
        return KubeletDirectory::new(own, format!("{distribution} has it there"));
    }
    match daemon_sets.iter().find_map(sign) {
        Some(sign) => sign,
        None => KubeletDirectory::new(KUBELET_DIR, "the default"),
    }
}

/// The directory that a working DaemonSet registers a kubelet plugin in.
fn sign(daemon_set: &Value) -> Option<KubeletDirectory> {
    let is_working = daemon_set["status"]["numberReady"]
        .as_u64()
        .is_some_and(|ready| ready > 0);
    let volumes = field(daemon_set, "spec.template.spec.volumes")?.as_array()?;
    let paths = volumes
        .iter()
        .filter_map(|volume| volume["hostPath"]["path"].as_str());
    let mut roots = paths.filter_map(|path| {
        path.trim_end_matches('/')
            .strip_suffix("/plugins_registry")
            .filter(|root| !root.is_empty())
    });
    let directory = roots.next().filter(|_| is_working)?;
    let how = format!("{} uses it", ObjectKey::of(daemon_set));
    Some(KubeletDirectory::new(directory, how))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn daemon_set(path: &str, ready: u64) -> Value {
        json!({"kind": "DaemonSet", "metadata": {"name": "node", "namespace": "csi"},
            "spec": {"template": {"spec": {"volumes": [{"name": "x", "emptyDir": {}},
                {"name": "r", "hostPath": {"path": path}}]}}},
            "status": {"numberReady": ready}})
    }

    #[test]
    fn the_directory_by_its_signs() {
        let registers = daemon_set("/data/kubelet/plugins_registry/", 1);
        let broken = daemon_set("/elsewhere/plugins_registry", 0);
        let logs = daemon_set("/var/log", 3);
        let k0s = "/var/lib/k0s/kubelet";
        for (chosen, installed, distribution, daemon_sets, directory, how) in [
            (
                Some("/c"),
                Some("/i"),
                Distribution::K0s,
                vec![&registers],
                "/c",
                "--kubelet-dir",
            ),
            (
                None,
                Some("/i"),
                Distribution::K0s,
                vec![&registers],
                "/i",
                "as installed",
            ),
            (
                None,
                None,
                Distribution::K0s,
                vec![&registers],
                k0s,
                "k0s has it there",
            ),
            (
                None,
                None,
                Distribution::Kubeadm,
                vec![&logs, &registers],
                "/data/kubelet",
                "DaemonSet csi/node",
            ),
            (
                None,
                None,
                Distribution::Kubeadm,
                vec![&broken],
                KUBELET_DIR,
                "the default",
            ),
            (
                None,
                None,
                Distribution::Kind,
                vec![],
                KUBELET_DIR,
                "the default",
            ),
        ] {
            let daemon_sets: Vec<Value> = daemon_sets.into_iter().cloned().collect();
            let found = find(chosen, installed, distribution, &daemon_sets);
            assert_eq!(found.directory, directory);
            assert!(found.how.contains(how), "{found:?}");
        }
    }
}

//! What hostloop leaves on the nodes.

use crate::distribution::KUBELET_DIR;
use crate::manifests::{Installed, Pool};

/// A line for each thing on a node, with the command that removes it. `installed` is `None` if the
/// DaemonSet is gone; then the lines have the default directories.
pub(super) fn lines(installed: &Option<Installed>, driver: &str) -> Vec<String> {
    let default = Installed::default();
    let installed = installed.as_ref().unwrap_or(&default);
    let kubelet = installed.kubelet_dir.as_deref().unwrap_or(KUBELET_DIR);
    let state = format!("{kubelet}/plugins/{driver}");
    let mut lines = match installed.pools.as_slice() {
        [] => vec![pool_line("default", "/var/lib/hostloop")],
        pools => pools.iter().map(pool).collect(),
    };
    lines.push(format!(
        "{state}: mounts and registry of pools. For each mount under it: umount; then rm -r {state}"
    ));
    if let Some(image) = &installed.image {
        lines.push(format!("image {image}: crictl rmi {image}"));
    }
    lines.push(
        "Pools have the files of volumes that were deleted with reclaimPolicy Retain, too."
            .to_owned(),
    );
    lines
}

fn pool(pool: &Pool) -> String {
    if pool.is_device() {
        format!(
            "{}: pool {}, a filesystem on the device: wipefs -a {0}",
            pool.path, pool.name
        )
    } else {
        pool_line(&pool.name, &pool.path)
    }
}

fn pool_line(name: &str, path: &str) -> String {
    format!("{path}: pool {name}. To delete all its data: rm -r {path}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_objects::has;

    #[test]
    fn each_thing_has_its_command() {
        let installed = Installed {
            kubelet_dir: Some("/k".to_owned()),
            pools: vec![
                "a=/srv/a,inline".parse().unwrap(),
                "b=/dev/sdb".parse().unwrap(),
            ],
            image: Some("i:1".to_owned()),
            ..Installed::default()
        };
        let lines = lines(&Some(installed), "d").join("\n");
        has(
            &lines,
            &[
                "rm -r /srv/a",
                "wipefs -a /dev/sdb",
                "rm -r /k/plugins/d",
                "crictl rmi i:1",
            ],
        );
    }

    #[test]
    fn without_a_daemon_set_there_are_defaults() {
        let lines = lines(&None, "d").join("\n");
        has(
            &lines,
            &[
                "rm -r /var/lib/hostloop",
                "rm -r /var/lib/kubelet/plugins/d",
            ],
        );
    }
}

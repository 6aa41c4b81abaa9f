//! The command lines of containers in manifests.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::container_flags::flag_values;
use crate::volume_objects::title;

/// The container in which the driver runs.
pub(in crate::check) fn driver_container(spec: &PodSpec) -> Option<&Container> {
    spec.containers
        .iter()
        .find(|c| runs_driver(c))
        .or(spec.containers.first())
}

/// True if the container's arguments begin the driver.
pub(super) fn runs_driver(container: &Container) -> bool {
    container.args.iter().flatten().any(|arg| arg == "run")
}

/// The first value of a flag.
pub(in crate::check) fn flag(container: &Container, name: &str) -> Option<String> {
    flag_values(container, name).next()
}

/// The Deployments that run a snapshot controller, as `namespace/name`.
pub(in crate::check) fn snapshot_controllers(deployments: &[Deployment]) -> Vec<String> {
    deployments
        .iter()
        .filter(|deployment| runs_snapshot_controller(deployment))
        .map(|deployment| title(&deployment.metadata))
        .collect()
}

fn runs_snapshot_controller(deployment: &Deployment) -> bool {
    let spec = deployment.spec.as_ref();
    let wanted = spec.and_then(|s| s.replicas).unwrap_or(1) > 0;
    let pod = spec.and_then(|s| s.template.spec.as_ref());
    wanted && pod.is_some_and(|pod| pod.containers.iter().any(is_snapshot_controller))
}

fn is_snapshot_controller(container: &Container) -> bool {
    // The last part of the image's path, without tag and digest: `csi-snapshot-controller`, or
    // `mirrored-sig-storage-snapshot-controller`.
    let image = container.image.as_deref().unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let name = name.split(['@', ':']).next().unwrap_or_default();
    // The image first, because that is enough for most of the Deployments of all namespaces.
    name.ends_with("snapshot-controller")
        || flag(container, "controllers").is_some_and(|list| {
            list.split(',')
                .any(|role| role.trim() == "snapshot-controller")
        })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::check::decide::testing::object;

    #[rstest]
    #[case("registry.k8s.io/sig-storage/snapshot-controller:v8.2.0", "", 1, true)]
    #[case("quay.io/x/ose-csi-snapshot-controller@sha256:00", "", 1, true)]
    #[case("rancher/mirrored-sig-storage-snapshot-controller:v8", "", 1, true)]
    #[case("registry:5000/snapshot-controller", "", 1, true)]
    #[case("registry.k8s.io/sig-storage/snapshot-controller:v8.2.0", "", 0, false)]
    #[case("registry.k8s.io/sig-storage/csi-snapshotter:v8.2.0", "", 1, false)]
    #[case("hostloop", "--controllers=*,snapshot-controller", 1, true)]
    #[case("hostloop", "--controllers=*", 1, false)]
    #[case("hostloop", "--controllers=*,-snapshot-controller", 1, false)]
    fn controllers(
        #[case] image: &str,
        #[case] arg: &str,
        #[case] replicas: i32,
        #[case] runs: bool,
    ) {
        let deployment: Deployment = object(json!({
            "metadata": {"name": "d", "namespace": "ns"},
            "spec": {
                "replicas": replicas,
                "selector": {},
                "template": {"spec": {"containers": [{"name": "c", "image": image, "args": [arg]}]}},
            },
        }));
        assert_eq!(snapshot_controllers(&[deployment]) == ["ns/d"], runs);
    }
}

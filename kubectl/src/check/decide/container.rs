//! The command lines of containers in manifests.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::container_flags::arguments;
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

/// The value of a flag: from the arguments, or from its environment variable. A flag without a
/// value is `true`.
pub(in crate::check) fn flag(container: &Container, name: &str) -> Option<String> {
    // A pod template has no values for the fields of a pod.
    let given = arguments(&Pod::default(), container)
        .into_iter()
        .find_map(|arg| {
            let rest = arg.strip_prefix("--")?.strip_prefix(name)?;
            match rest.strip_prefix('=') {
                Some(value) => Some(value.to_owned()),
                None if rest.is_empty() => Some("true".to_owned()),
                None => None,
            }
        });
    let variable = format!("HOSTLOOP_{}", name.to_ascii_uppercase().replace('-', "_"));
    given.or_else(|| {
        let variable = container
            .env
            .iter()
            .flatten()
            .find(|v| v.name == variable)?;
        variable.value.clone()
    })
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
    let ours = flag(container, "controllers");
    name.ends_with("snapshot-controller")
        || ours.is_some_and(|list| {
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

    fn container(args: &[&str]) -> Container {
        object(json!({
            "name": "c",
            "args": args,
            "env": [
                {"name": "ATTACH", "value": "false"},
                {"name": "EMPTY"},
                {"name": "HOSTLOOP_REJECT_MULTI_NODE", "value": "true"},
            ],
        }))
    }

    #[rstest]
    #[case(&["--enable-attach=$(ATTACH)"], "enable-attach", Some("false"))]
    #[case(&["run", "--enable-attach"], "enable-attach", Some("true"))]
    #[case(&["--enable-attach-more=1"], "enable-attach", None)]
    #[case(&[], "reject-multi-node", Some("true"))]
    #[case(&["--reject-multi-node=false"], "reject-multi-node", Some("false"))]
    #[case(&["--a=$(NONE)x$(EMPTY)y"], "a", Some("$(NONE)xy"))]
    fn flags(#[case] args: &[&str], #[case] name: &str, #[case] value: Option<&str>) {
        assert_eq!(flag(&container(args), name).as_deref(), value);
    }

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

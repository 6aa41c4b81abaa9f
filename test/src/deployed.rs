//! Objects deployed beside the program, adapted to drivers of other names.

use std::path::{Path, PathBuf};

use crate::cluster::Cluster;
use crate::driver::binary;
use crate::leaks::{mounted, mountinfo};
use crate::loop_devices;
use crate::machine::{self, text};

/// The namespace of the deployed driver and its accounts.
pub const NAMESPACE: &str = "hostloop";
/// The CSI name of the deployed driver.
pub const DRIVER: &str = "hostloop.csi.dev";

/// What the deployed driver has on a node.
pub const DATA: [&str; 2] = [
    "/var/lib/hostloop",
    "/var/lib/kubelet/plugins/hostloop.csi.dev",
];
/// The same, under the name of the host-path driver.
pub const DATA_AS_HOST_PATH: [&str; 2] = [
    "/var/lib/hostloop",
    "/var/lib/kubelet/plugins/hostpath.csi.k8s.io",
];

/// The name of the deployed ConfigMap from which the API server's policy places claims.
pub const TABLE: &str = "hostloop-places";

/// Removes a driver by its manifest, and the cluster. Nothing may stay attached from the directory of
/// its pools, or mounted beneath kubelet's.
pub fn remove(cluster: Cluster, manifest: &str, pool_dir: &Path) {
    cluster.delete(manifest);
    let kubelet_dir = cluster.kubelet_dir().to_path_buf();
    drop(cluster);
    let devices = loop_devices::beneath(pool_dir);
    assert!(devices.is_empty(), "still attached: {devices:?}");
    let mut left = mounted(&mountinfo("self"));
    left.retain(|mount| mount.at.starts_with(&kubelet_dir));
    assert!(left.is_empty(), "still mounted: {left:?}");
}

/// A policy that matches nothing and has ConfigMaps as parameters. After the last such policy is
/// deleted, the API server (1.36 and 1.37) stops watching ConfigMaps and cannot start again. This
/// policy stays while others come and go.
pub const PARAMETERS: &str = "\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: hostloop-test-parameters}
spec:
  failurePolicy: Ignore
  reinvocationPolicy: Never
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules:
      - {apiGroups: [test.csi.dev], apiVersions: [v1], operations: [CREATE], resources: [none]}
  mutations:
    - {patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{}'}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: hostloop-test-parameters}
spec:
  policyName: hostloop-test-parameters
  paramRef: {name: none, namespace: default, parameterNotFoundAction: Allow}
";

/// The policies with which the API server places and labels claims and labels attachments, and
/// their empty ConfigMap: for this driver, with this name, in this namespace.
pub fn place_claims(driver: &str, name: &str, namespace: &str) -> String {
    let policy = read("components/place-claims/policy.yaml");
    let policy = replaced(
        &policy,
        &[
            ("'hostloop.csi.dev'", &format!("'{driver}'")),
            ("hostloop-claims", &format!("{name}-claims")),
            ("hostloop-attachments", &format!("{name}-attachments")),
            (
                "namespace: hostloop\n",
                &format!("namespace: {namespace}\n"),
            ),
        ],
    );
    let table = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {TABLE}\n  namespace: {namespace}\n"
    );
    format!("{table}---\n{policy}")
}

/// Makes the image of the driver under test.
pub fn image(output: &Path) {
    let script = machine::root().join("scripts/image");
    let (binary, output) = (binary(), text(output));
    machine::run(
        text(&script),
        &["--binary", text(&binary), "--output", output],
    );
}

/// The image of the driver under test: the archive `HOSTLOOP_IMAGE`, or a new one at this path.
pub fn tested_image(or_made: PathBuf) -> PathBuf {
    if let Some(image) = std::env::var_os("HOSTLOOP_IMAGE") {
        return image.into();
    }
    image(&or_made);
    or_made
}

/// The manifest that `scripts/render` makes of these arguments.
pub fn render(args: &[&str]) -> String {
    render_in(&machine::root(), args)
}

/// The manifest with these components, without the driver's own pods.
pub fn without_pods(components: &[&str]) -> String {
    let arguments: Vec<_> = components
        .iter()
        .flat_map(|name| ["--component", name])
        .collect();
    let manifest = render(&arguments);
    let has_pods = |object: &str| {
        ["DaemonSet", "Deployment"]
            .iter()
            .any(|kind| object.contains(&format!("\nkind: {kind}\n")))
    };
    let objects = manifest.split("\n---\n").filter(|object| !has_pods(object));
    objects.collect::<Vec<_>>().join("\n---\n")
}

/// [`render`] in another checkout.
pub fn render_in(tree: &Path, args: &[&str]) -> String {
    let script = tree.join("scripts/render");
    machine::run(text(&script), &[args, &["--output", "-"]].concat())
}

fn read(file: &str) -> String {
    let path = machine::root().join("deploy").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Replaces each of these texts. A missing text fails the test.
fn replaced(text: &str, changes: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (deployed, ours) in changes {
        assert!(text.contains(deployed), "{deployed:?} is deployed");
        text = text.replace(deployed, ours);
    }
    text
}

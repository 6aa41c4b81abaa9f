//! The cluster of a test, with hostloop and a namespace for its objects.

use std::path::PathBuf;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, Stock, check, pod, wait_for};
use hostloop_test::machine;
use hostloop_test::plugin::Plugin;
use hostloop_test::scratch::Scratch;
use hostloop_test::{deployed, walk};
use serde_json::{Value, json};

/// The namespace of the tests' objects.
pub(crate) const NAMESPACE: &str = "shared";

/// The taint with which Kubernetes detaches the volumes of a dead node by force.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The number of nodes.
pub(crate) const NODES: u32 = 3;

pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    stock: Stock,
    pub(crate) scratch: Scratch,
}

impl Site {
    /// A cluster of this version, or of the tests' own.
    pub(crate) fn up(version: Option<&'static str>) -> Site {
        machine::require();
        let options = Options {
            nodes: NODES,
            layout: Some("kind"),
            version,
            ..Options::default()
        };
        let cluster = Cluster::up(&options);
        let stock = Stock::take(&cluster, &[]);
        let scratch = Scratch::new();
        cluster.load(&deployed::tested_image(scratch.path().join("hostloop.tar")));
        let words = ["Sharing", "hostloop is installed"];
        Plugin::of(&cluster).succeeds(&["install", "--shared"], &words);
        cluster.kubectl(&["create", "namespace", NAMESPACE]);
        Site {
            cluster,
            stock,
            scratch,
        }
    }

    /// Deletes all of it. Nothing is left on any node.
    pub(crate) async fn end(self) {
        self.cluster
            .kubectl(&["delete", "namespace", NAMESPACE, "--timeout=300s"]);
        walk::until_no_volume(&self.cluster).await;
        Plugin::of(&self.cluster).uninstalls_with_data().await;
        self.stock.assert_nothing_left(&self.cluster).await;
    }

    pub(crate) fn plugin(&self) -> Plugin<'_> {
        Plugin::of(&self.cluster)
    }

    /// A claim of the class with this filesystem, with this change of its spec.
    pub(crate) fn claim(&self, name: &str, filesystem: &str, mode: &str, change: Value) {
        let mut claim = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "storageClassName": format!("hostloop-shared-{filesystem}"),
                "accessModes": [mode],
                "resources": {"requests": {"storage": "512Mi"}},
            },
        });
        json_patch::merge(&mut claim["spec"], &change);
        self.cluster.apply(&claim.to_string());
    }

    /// Deletes claims that no pod uses any more, and waits until they are gone.
    pub(crate) fn delete_claims(&self, claims: &[&str]) {
        let delete = ["delete", "pvc", "-n", NAMESPACE, "--timeout=300s"];
        self.cluster.kubectl(&[&delete[..], claims].concat());
    }

    /// A pod on this node, with the claims `files` at `/NAME` and the claims `devices` as `/dev/NAME`.
    pub(crate) fn pod(&self, name: &str, node: u32, files: &[&str], devices: &[&str]) {
        let node = json!({"nodeSelector": {"kubernetes.io/hostname": self.cluster.node(node)}});
        let command = ["sleep", "1000000"];
        let pod = pod(NAMESPACE, name, &command, (files, devices), node);
        self.cluster.apply(&pod.to_string());
    }

    /// A Deployment of one pod at a time on a claim. `container` says what its container has besides a
    /// name and the claim at `path`.
    pub(crate) fn deployment(
        &self,
        name: &str,
        (claim, path): (&str, &str),
        seconds_to_end: u32,
        mut container: Value,
    ) {
        let of_all = json!({
            "name": "main",
            "volumeMounts": [{"name": "data", "mountPath": path}],
        });
        json_patch::merge(&mut container, &of_all);
        let labels = json!({"app": name});
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "terminationGracePeriodSeconds": seconds_to_end,
                        "containers": [container],
                        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
                    },
                },
            },
        });
        self.cluster.apply(&deployment.to_string());
    }

    /// [`Site::pod`], once it is ready.
    pub(crate) fn run(&self, name: &str, node: u32, files: &[&str], devices: &[&str]) {
        self.pod(name, node, files, devices);
        self.cluster.pod_ready(NAMESPACE, name);
    }

    /// Deletes a pod, and waits until it is gone.
    pub(crate) fn stop(&self, pod: &str) {
        let delete = ["delete", "pod", "-n", NAMESPACE, pod, "--timeout=300s"];
        self.cluster.kubectl(&delete);
    }

    /// Runs a line of shell in a pod.
    pub(crate) fn sh(&self, pod: &str, line: &str) -> String {
        self.cluster.exec(NAMESPACE, pod, &["sh", "-c", line])
    }

    /// A field of an object in the namespace of the tests, by a template of kubectl.
    pub(crate) fn field(&self, object: &str, template: &str) -> String {
        let template = format!("jsonpath={template}");
        self.cluster
            .kubectl(&["get", "-n", NAMESPACE, object, "-o", &template])
    }

    /// The PersistentVolume of a claim.
    pub(crate) fn volume(&self, claim: &str) -> String {
        self.field(&format!("pvc/{claim}"), "{.spec.volumeName}")
    }

    /// What the attachments of a claim's volume say, as `NODE TEXT` by a template of one.
    pub(crate) fn attachments(&self, claim: &str, template: &str) -> Vec<(String, String)> {
        let volume = self.volume(claim);
        let filter = format!("?(@.spec.source.persistentVolumeName==\"{volume}\")");
        let template = format!(
            "jsonpath={{range .items[{filter}]}}{{.spec.nodeName}}{{\" \"}}{template}{{\"\\n\"}}{{end}}"
        );
        let listed = self
            .cluster
            .kubectl(&["get", "volumeattachments", "-o", &template]);
        let lines = listed.lines().filter_map(|line| line.split_once(' '));
        lines
            .map(|(node, text)| (node.to_owned(), text.to_owned()))
            .collect()
    }

    /// A number that the publish context of a claim's volume has for all nodes.
    pub(crate) fn context(&self, claim: &str, key: &str) -> String {
        let template = format!("{{.status.attachmentMetadata.{key}}}");
        let mut found = self.attachments(claim, &template);
        found.dedup_by(|(_, a), (_, b)| a == b);
        match &found[..] {
            [(_, text)] if !text.is_empty() => text.clone(),
            found => panic!("{key} of {claim}: {found:?}"),
        }
    }

    /// Where kubelet has a claim's filesystem for a pod, on the pod's node.
    pub(crate) fn path(&self, pod: &str, claim: &str) -> PathBuf {
        let uid = self.field(&format!("pod/{pod}"), "{.metadata.uid}");
        let volume = self.volume(claim);
        self.cluster.kubelet_dir().join(format!(
            "pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount"
        ))
    }

    /// Nodes 2 and 3, the one with the cluster-wide tasks last. Node 1 is the owner of the tests.
    pub(crate) fn users(&self) -> [u32; 2] {
        let node = self.cluster.kubectl(&[
            "get",
            "pods",
            "-n",
            "hostloop",
            "-l",
            "app.kubernetes.io/name=hostloop-controller",
            "-o",
            "jsonpath={.items[0].spec.nodeName}",
        ]);
        if node == self.cluster.node(2) {
            [3, 2]
        } else {
            [2, 3]
        }
    }

    /// Changes the taint of a node that is out of service: `=VALUE:EFFECT` or `-`.
    pub(crate) fn taint(&self, node: u32, change: &str) {
        let taint = format!("{OUT_OF_SERVICE}{change}");
        let node = self.cluster.node(node);
        self.cluster.kubectl(&["taint", "nodes", &node, &taint]);
    }

    /// Starts a node that was killed, and waits until its driver serves it.
    pub(crate) async fn start(&self, node: u32) {
        self.cluster.start(&format!("node-{node}"));
        self.ready(node).await;
    }

    /// Waits until kubelet of a node has the driver, after its node was down.
    pub(crate) async fn ready(&self, node: u32) {
        let name = self.cluster.node(node);
        let selector = format!("spec.nodeName={name}");
        wait_for("the driver of a node", PATIENCE, async || {
            let node = format!("node/{name}");
            let ready = ["wait", "--for=condition=Ready", &node, "--timeout=1s"];
            self.cluster.try_kubectl(&ready)?;
            let pod = self.driver_pod(&selector)?;
            let status = ["hostloop", "status"];
            let said = self.cluster.try_exec("hostloop", &pod, &status)?;
            check(said.contains("open"), || said)
        })
        .await;
    }

    /// The driver's pod that these fields select.
    fn driver_pod(&self, selector: &str) -> Result<String, String> {
        let pods = self.cluster.try_kubectl(&[
            "get",
            "pods",
            "-n",
            "hostloop",
            "-l",
            "app.kubernetes.io/name=hostloop",
            "--field-selector",
            selector,
            "-o",
            "name",
        ])?;
        let first = pods.lines().next().map(str::to_owned);
        first.ok_or_else(|| "the driver has no pod there".to_owned())
    }

    /// Waits until a line of shell in a pod has an output.
    pub(crate) async fn until(&self, what: &str, pod: &str, line: &str, output: &str) {
        wait_for(what, PATIENCE, async || {
            let said = self.cluster.try_exec(NAMESPACE, pod, &["sh", "-c", line])?;
            check(said == output, || said)
        })
        .await;
    }
}

//! hostloop's image under host-path's name: the pod of host-path, with upstream's sidecars. A script
//! stays as it is.

use hostloop_test::PATIENCE;
use hostloop_test::cluster::wait_for;

use crate::overlay::grows;
use crate::site::{SIDECARS, Site};

/// The pods of host-path's manifests.
pub(crate) const PODS: &str = "app.kubernetes.io/part-of=csi-driver-host-path";

/// What host-path's manifests, and hostloop's own state, have on a node.
pub(crate) const DIRECTORIES: [&str; 3] = [
    "/var/lib/csi-hostpath-data",
    "/var/lib/kubelet/plugins/csi-hostpath",
    "/var/lib/kubelet/plugins/hostpath.csi.k8s.io",
];

/// Takes back all that a project has typed.
async fn leaves(site: &Site, project: &str) {
    site.clears().await;
    for file in ["plugin", "driverinfo", "snapshotclass", "storageclass"] {
        let delete = format!("kubectl delete --ignore-not-found -f $HOST_PATH/{file}.yaml");
        site.types(project, &delete);
    }
    site.cluster.until_no_pods(PODS).await;
    site.types(project, "back");
}

/// One node: host-path's pod serves no other.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_stay_as_they_are() {
    let site = Site::up(1, SIDECARS);
    for project in ["cloudnative-pg", "volsync", "velero"] {
        site.types(project, "before");
        site.types(project, "by_image");
        site.types(project, "after");
        site.types(project, "uses");
        leaves(&site, project).await;
    }
    kanister(&site).await;
    mariadb_operator(&site).await;
    site.ends(&DIRECTORIES).await;
}

/// What its script takes out of the manifest is what makes a volume reach its pod.
async fn kanister(site: &Site) {
    let project = "kanister";
    site.types(project, "before");
    site.types(project, "without_propagation");
    site.types(project, "after");
    site.types(project, "checks");
    site.types(project, "misses_its_volume");
    leaves(site, project).await;
}

/// Everything works but one manifest that its deploy.sh waits for: the image has no socat.
async fn mariadb_operator(site: &Site) {
    let project = "mariadb-operator";
    site.types(project, "before");
    site.types(project, "by_image");
    site.types(project, "after");
    site.types(project, "testing");
    let states = "jsonpath={.status.containerStatuses[*].state}\
                  {.status.containerStatuses[*].lastState}";
    wait_for("a pod without its program", PATIENCE, async || {
        let pod = ["get", "pod", "csi-hostpath-socat-0", "-o", states];
        let state = site.cluster.try_kubectl(&pod)?;
        let says = state.contains("socat") && state.contains("executable file not found");
        if says { Ok(()) } else { Err(state) }
    })
    .await;
    site.types(project, "no_testing");
    grows(site);
    leaves(site, project).await;
}

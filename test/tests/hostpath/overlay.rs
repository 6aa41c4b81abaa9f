//! The overlay `csi-hostpath`, in place of the line with which a script installs host-path.

use hostloop_test::deployed::DATA_AS_HOST_PATH;
use hostloop_test::fault_table::until_unstaged;
use hostloop_test::machine::{grows_mounted_ext4, not_run};

use crate::site::{SNAPSHOT_CONTROLLER, Site};

/// The pods of hostloop.
const PODS: &str = "app.kubernetes.io/part-of=hostloop";

/// Two nodes, and of upstream's programs the one that every script brings.
fn site() -> Site {
    Site::up(2, &[SNAPSHOT_CONTROLLER])
}

/// What a project types before the driver, the overlay, and what it types after it.
fn installs(site: &Site, project: &str) {
    site.types(project, "before");
    site.types(project, "by_overlay");
    site.types(project, "after");
}

/// Takes back all that a project has typed.
async fn leaves(site: &Site, project: &str) {
    site.clears().await;
    let delete = "kubectl delete -k deploy/overlays/csi-hostpath --ignore-not-found --timeout=300s";
    site.types(project, delete);
    site.cluster.until_no_pods(PODS).await;
    site.types(project, "back");
}

#[tokio::test(flavor = "multi_thread")]
async fn cloudnative_pg() {
    let site = site();
    installs(&site, "cloudnative-pg");
    site.types("cloudnative-pg", "uses");
    leaves(&site, "cloudnative-pg").await;
    site.ends(&DATA_AS_HOST_PATH).await;
}

/// The other projects, one after the other in one cluster.
#[tokio::test(flavor = "multi_thread")]
async fn others() {
    let site = site();
    for project in ["volsync", "velero"] {
        installs(&site, project);
        site.types(project, "uses");
        leaves(&site, project).await;
    }
    kanister(&site).await;
    mariadb_operator(&site).await;
    minikube(&site).await;
    site.ends(&DATA_AS_HOST_PATH).await;
}

/// Its check fails until its own class is applied over the overlay's, which has an annotation more.
async fn kanister(site: &Site) {
    site.types("kanister", "before");
    site.types("kanister", "by_overlay");
    let differs = site
        .try_types("kanister", "checks")
        .expect_err("it differs");
    assert!(
        differs.contains("default-snapshot-class"),
        "the annotation is the difference: {differs}"
    );
    site.types("kanister", "after");
    site.types("kanister", "uses");
    leaves(site, "kanister").await;
}

async fn mariadb_operator(site: &Site) {
    let project = "mariadb-operator";
    installs(site, project);
    grows(site);
    leaves(site, project).await;
}

/// Its tests wait until a volume has grown under its pod. The pod of a machine on which no mounted
/// ext4 grows has to start once more.
pub(crate) fn grows(site: &Site) {
    let project = "mariadb-operator";
    site.types(project, "uses");
    if !grows_mounted_ext4() {
        not_run(
            "mariadb-operator: growth under a running pod",
            "this machine takes CAP_SYS_RESOURCE away; the pod was started again",
        );
        site.types(project, "ends");
        until_unstaged(&site.cluster, "storage-mariadb-0");
        site.types(project, "starts_again");
    }
    site.types(project, "has_grown");
}

/// The addon itself finds no pod with its label. The claims and snapshots of its test work.
async fn minikube(site: &Site) {
    site.types("minikube", "before");
    site.types("minikube", "by_overlay");
    site.types("minikube", "deploy_sh_waits");
    site.try_types("minikube", "has_its_pods")
        .expect_err("no pod has the addon's label");
    site.types("minikube", "uses");
    leaves(site, "minikube").await;
}

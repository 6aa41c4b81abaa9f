//! hostloop's image in the pods of minikube's addon, one on each node.

use crate::image::{DIRECTORIES, PODS};
use crate::site::{SIDECARS, Site};

#[tokio::test(flavor = "multi_thread")]
async fn minikube() {
    let project = "minikube";
    let site = Site::up(1, SIDECARS);
    site.types(project, "before");
    site.types(project, "by_addon");
    site.types(project, "after");
    site.types(project, "uses");
    site.clears().await;
    for file in ["snapshotclass", "addon"] {
        let delete = format!("kubectl delete --ignore-not-found -f $HOST_PATH/{file}.yaml");
        site.types(project, &delete);
    }
    site.cluster.until_no_pods(PODS).await;
    site.types(project, "back");
    site.ends(&DIRECTORIES).await;
}

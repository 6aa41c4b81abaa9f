//! A short walk through a volume's life, for clusters that are not like that of the other tests. It
//! uses kubectl alone, so that the client library is not what makes it pass.

use crate::PATIENCE;
use crate::cluster::{Cluster, wait_for};
use crate::machine;

/// A snapshot of the claim `original`.
pub const SNAPSHOT: &str = "\
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: original}
spec: {volumeSnapshotClassName: hostloop, source: {persistentVolumeClaimName: original}}
";

/// The field of a claim that is restored from [`SNAPSHOT`].
pub const FROM_SNAPSHOT: &str =
    "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: original}";

/// A claim of this name with these further lines, and a pod that uses it.
pub fn claim_and_pod(name: &str, lines: &[&str]) -> String {
    let fields = lines.join("\n  ");
    format!(
        "\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce]
  {fields}
  resources: {{requests: {{storage: 512Mi}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: main
      image: busybox:1
      command: [sleep, '1000000']
      volumeMounts: [{{name: data, mountPath: /data}}]
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: {name}}}}}]
"
    )
}

/// A claim, a pod that writes, a snapshot, a pod with the restored volume, growth under the pod,
/// deletion. The driver is installed, with its snapshot class. Returns the names of the steps.
pub async fn walk(cluster: &Cluster) -> Vec<&'static str> {
    walk_in(cluster, "hostloop-xfs", "hostloop").await
}

/// [`walk`] with these classes of volumes and of snapshots.
pub async fn walk_in(cluster: &Cluster, class: &str, snapshots: &str) -> Vec<&'static str> {
    let mut steps = Vec::new();
    let class = format!("storageClassName: {class}");
    let original = claim_and_pod("original", &[&class]);
    let restored = claim_and_pod("restored", &[&class, FROM_SNAPSHOT]);
    let snapshot = SNAPSHOT.replace(
        "volumeSnapshotClassName: hostloop",
        &format!("volumeSnapshotClassName: {snapshots}"),
    );
    let write = |words: &str| {
        let command = format!("echo {words} >/data/file && sync /data/file");
        cluster.exec("default", "original", &["sh", "-c", &command]);
    };
    let content = |pod: &str| cluster.exec("default", pod, &["cat", "/data/file"]);

    cluster.apply(&original);
    cluster.pod_ready("default", "original");
    steps.push("a claim with a pod");
    write("before");
    assert_eq!(content("original"), "before\n");
    steps.push("writing");

    cluster.apply(&snapshot);
    until(
        cluster,
        "volumesnapshot/original",
        ".status.readyToUse",
        "true",
    )
    .await;
    write("after");
    steps.push("a snapshot");

    cluster.apply(&restored);
    cluster.pod_ready("default", "restored");
    assert_eq!(content("restored"), "before\n");
    assert_eq!(content("original"), "after\n");
    steps.push("a restored volume");

    grow(cluster).await;
    assert_eq!(content("original"), "after\n");
    steps.push("growth");

    cluster.delete(&[&*original, &*restored, &*snapshot].join("---\n"));
    until_no_volume(cluster).await;
    steps.push("deletion");
    steps
}

/// The filesystem grows while the pod has it.
async fn grow(cluster: &Cluster) {
    if !machine::grows_mounted_ext4() && is_ext4(cluster) {
        let why = "this machine withholds CAP_SYS_RESOURCE";
        machine::not_run("growth of an ext4 under its pod", why);
        return;
    }
    let before = mib(cluster);
    let size = r#"{"spec": {"resources": {"requests": {"storage": "1Gi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", "original", "--patch", size]);
    let mut looks = 0;
    wait_for("the claim's new size", PATIENCE, async || {
        looks += 1;
        if looks % 10 == 0 {
            // Kubelet checks a pod's volumes when the pod changes, otherwise every minute.
            let look = format!("test/look={looks}");
            cluster.kubectl(&["annotate", "--overwrite", "pod", "original", &look]);
        }
        let size = get(cluster, "pvc/original", ".status.capacity.storage");
        if size == "1Gi" {
            Ok(())
        } else {
            Err(describe(cluster, "pvc/original"))
        }
    })
    .await;
    let after = mib(cluster);
    assert!(after >= before + 480, "{before} MiB, then {after}");
}

/// True if the pod's filesystem is an ext4.
fn is_ext4(cluster: &Cluster) -> bool {
    let mounts = cluster.exec("default", "original", &["cat", "/proc/mounts"]);
    mounts.lines().any(|line| line.contains(" /data ext4 "))
}

/// The size of the pod's filesystem.
fn mib(cluster: &Cluster) -> u64 {
    let df = cluster.exec("default", "original", &["df", "-Pm", "/data"]);
    let size = df
        .lines()
        .nth(1)
        .and_then(|line| line.split_whitespace().nth(1));
    size.and_then(|size| size.parse().ok())
        .unwrap_or_else(|| panic!("{df}"))
}

/// Waits until no volume and no content of a snapshot is left.
pub async fn until_no_volume(cluster: &Cluster) {
    wait_for("the end of all volumes", PATIENCE, async || {
        let left = cluster.try_kubectl(&["get", "pv,volumesnapshotcontents", "-o", "name"])?;
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

async fn until(cluster: &Cluster, object: &str, field: &str, value: &str) {
    wait_for(
        &format!("{object}: {field} {value}"),
        PATIENCE,
        async || {
            let now = get(cluster, object, field);
            if now == value {
                Ok(())
            } else {
                Err(describe(cluster, object))
            }
        },
    )
    .await;
}

fn get(cluster: &Cluster, object: &str, field: &str) -> String {
    cluster.kubectl(&["get", object, "-o", &format!("jsonpath={{{field}}}")])
}

fn describe(cluster: &Cluster, object: &str) -> String {
    cluster
        .try_kubectl(&["describe", object])
        .unwrap_or_else(|why| why)
}

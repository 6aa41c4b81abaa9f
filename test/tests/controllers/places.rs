//! hostloop itself, which reads its topology from its node's labels. The tests run without a
//! kubelet and check what it would see.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hostloop_proto::csi;
use hostloop_test::PATIENCE;
use hostloop_test::client::{map, new_volume};
use hostloop_test::driver::{Driver, DriverSpec, NODE};
use hostloop_test::front::objects::{self, Objects, Place};
use hostloop_test::front::wait::until;
use hostloop_test::pools::{PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::annotation;

const NAME: &str = "places.test.csi.dev";
const ZONE: &str = "topology.example.org/zone";

struct Site<'a> {
    scratch: &'a Scratch,
    pool: &'a PoolFixture,
    namespace: String,
    plugins: PathBuf,
}

impl Site<'_> {
    fn start(&self, kubeconfig: &Path) -> Driver {
        let args = [
            format!("--drivername={NAME}"),
            "--topology=rack=r1".to_owned(),
            format!("--topology-from-node-labels={ZONE}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--plugin-registration-path={}", self.plugins.display()),
            "--controllers=registrar,capacity".to_owned(),
            "--capacity-ownerref-level=-1".to_owned(),
        ];
        let spec = DriverSpec::new(self.scratch, &[self.pool]);
        spec.args(args).with_controllers(&self.namespace).start()
    }

    fn is_registered(&self) -> bool {
        self.plugins.join(format!("{NAME}-reg.sock")).exists()
    }

    async fn until_registered(&self) {
        let there = || async { self.is_registered().then_some(()) };
        let registered = until(PATIENCE, there).await;
        assert!(registered.is_some(), "kubelet would find no socket");
    }
}

async fn places(driver: &Driver) -> Result<BTreeMap<String, String>, Status> {
    let csi = driver.csi().await;
    let info = csi.call(csi::NodeGetInfoRequest {}).await?;
    let topology = info.accessible_topology.unwrap_or_default();
    Ok(topology.segments.into_iter().collect())
}

fn expected(zone: &str) -> BTreeMap<String, String> {
    let own = ("topology.hostloop.csi.dev/node", NODE);
    map(&[own, ("rack", "r1"), (ZONE, zone)])
}

/// The node registers only after its zone is known. After that it registers with or without the API
/// server. A changed zone takes effect at the next start.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_reads_its_topology_from_its_labels() {
    let plane = crate::plane(false).await;
    let objects = Objects::connect(&plane.kubeconfig()).await;
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Ext4, 256 << 20);
    let site = Site {
        namespace: format!("places-{}", std::process::id()),
        plugins: scratch.dir("plugins"),
        scratch: &scratch,
        pool: &pool,
    };
    let node = Place::of("Node", "", NODE);
    let class = Place::of("StorageClass", "", &site.namespace);
    objects.namespace(&site.namespace).await;
    let made = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    objects.create(made).await;
    objects
        .create(objects::class(&site.namespace, NAME, json!({})))
        .await;
    let label = |zone: &'static str| {
        let labels = json!({"metadata": {"labels": {ZONE: zone}}});
        let (objects, node) = (&objects, &node);
        async move { objects.merge(node, labels).await }
    };

    let driver = site.start(&plane.kubeconfig());
    let unknown = places(&driver).await.expect_err("its zone is not known");
    assert_eq!(unknown.code(), Code::Unavailable, "{unknown}");
    assert!(unknown.message().contains(ZONE), "{unknown}");
    assert!(!site.is_registered());
    label("a").await;
    site.until_registered().await;
    assert_eq!(places(&driver).await.expect("it is known"), expected("a"));
    // Its capacity is published with all segments, also for classes with immediate binding.
    let published = || async {
        let all = objects.list("CSIStorageCapacity", &site.namespace).await;
        all.into_iter().next()
    };
    let published = until(PATIENCE, published).await.expect("a capacity");
    let labels = &published["nodeTopology"]["matchLabels"];
    assert_eq!(*labels, json!(expected("a")));
    let pool = annotation(&published, "hostloop.csi.dev/pools").as_str();
    let csi = driver.csi().await;
    let volume = csi.ok(new_volume("v", 8 << 20)).await.volume;
    let id = volume.expect("a volume").volume_id;
    assert!(
        id.contains(pool.expect("a pool")),
        "{id} is not of {pool:?}"
    );
    driver.stop();

    // Without the API server, the remembered labels are sufficient.
    let text = std::fs::read_to_string(plane.kubeconfig()).expect("a kubeconfig");
    let (server, _) = text
        .split_once("server: ")
        .and_then(|(_, rest)| rest.split_once('\n'))
        .expect("it names a server");
    let away = scratch.file("away", &text.replace(server, "https://127.0.0.1:1"));
    let driver = site.start(&away);
    site.until_registered().await;
    let remembered = places(&driver).await.expect("it is remembered");
    assert_eq!(remembered, expected("a"));
    driver.stop();

    // A node that waits too long for its labels goes on with the stored ones.
    let mut in_time = false;
    for zone in ["b", "c", "d", "e", "f"] {
        label(zone).await;
        let driver = site.start(&plane.kubeconfig());
        let asked = Instant::now();
        let found = places(&driver).await.expect("it is known");
        in_time = asked.elapsed() < Duration::from_secs(3);
        driver.stop();
        if in_time {
            assert_eq!(found, expected(zone));
            break;
        }
    }
    assert!(in_time, "the labels were not read in time");
    for at in [&class, &node, &Place::of("Namespace", "", &site.namespace)] {
        objects.delete(at).await;
    }
    let left: Vec<Value> = objects.list("CSINode", "").await;
    assert!(!left.iter().any(|one| one["metadata"]["name"] == NODE));
}

//! A cluster like a kind cluster, on which the commands of a project are typed.

use std::path::{Path, PathBuf};

use hostloop_test::cluster::{Cluster, Options, Stock};
use hostloop_test::machine::{self, root, text};
use hostloop_test::scratch::Scratch;
use hostloop_test::shell::Shell;
use hostloop_test::{deployed, tools, walk};
use serde_json::{Value, json};

/// The name of host-path's image in its manifests.
const HOST_PATH: &str = "registry.k8s.io/sig-storage/hostpathplugin:v1.17.1";

/// The sidecars in the pods of host-path.
pub(crate) const SIDECARS: &[&str] = &[
    "csi-attacher",
    "csi-provisioner",
    "csi-resizer",
    "csi-snapshotter",
    SNAPSHOT_CONTROLLER,
];

/// What a script brings itself.
pub(crate) const SNAPSHOT_CONTROLLER: &str = "snapshot-controller";

/// The cluster. The fields are dropped in order: each needs later ones.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    stock: Stock,
    shell: Shell,
    _scratch: Scratch,
}

impl Site {
    /// Starts a cluster. Its nodes have hostloop's image by both names, and these programs of
    /// upstream's.
    pub(crate) fn up(nodes: u32, programs: &[&str]) -> Site {
        machine::require();
        let options = Options {
            nodes,
            layout: Some("kind"),
            ..Options::default()
        };
        let cluster = Cluster::up(&options);
        let scratch = Scratch::new();
        let image = deployed::tested_image(scratch.path().join("hostloop.tar"));
        cluster.load(&image);
        cluster.load(&named_as_host_path(&image, &scratch));
        cluster.load(&sidecars(programs, &scratch));
        let site = Site {
            stock: Stock::take(&cluster, &[]),
            shell: Shell::of(&cluster, scratch.dir("shell")),
            _scratch: scratch,
            cluster,
        };
        site.types("lib", "kubectl apply -f $HOST_PATH/kind.yaml");
        site
    }

    /// Types what a function of a project's table has. An error has all that was typed and printed.
    pub(crate) fn try_types(&self, project: &str, function: &str) -> Result<String, String> {
        let lines =
            format!(". test/drop-in/lib.sh\n. test/drop-in/{project}.sh\nset -x\n{function}");
        self.shell.try_types(&root(), &[], &lines).map_err(|said| {
            let seen = self.seen();
            format!("{project}, {function}: {said}\nseen last:\n{seen}")
        })
    }

    /// [`Site::try_types`], but an error fails the test.
    #[track_caller]
    pub(crate) fn types(&self, project: &str, function: &str) -> String {
        self.try_types(project, function)
            .unwrap_or_else(|why| panic!("{why}"))
    }

    /// The objects, events and logs with which a failure begins to be understood.
    fn seen(&self) -> String {
        let objects = "pods,statefulsets,daemonsets,pvc,pv,volumeattachments,csinodes";
        let drivers = "app.kubernetes.io/part-of in (hostloop, csi-driver-host-path)";
        let asked: [&[&str]; 3] = [
            &["get", objects, "-A", "-o", "wide"],
            &["get", "events", "-A", "--sort-by=.lastTimestamp"],
            &[
                "logs",
                "-l",
                drivers,
                "--all-containers",
                "--prefix",
                "--tail=40",
            ],
        ];
        let answers = asked.map(|asked| self.cluster.try_kubectl(asked).unwrap_or_else(|why| why));
        answers.join("\n")
    }

    /// Deletes what the tests of a project made in namespace default, and waits until the driver
    /// has deleted its volumes and snapshots.
    pub(crate) async fn clears(&self) {
        let kinds = "pods,volumesnapshots,persistentvolumeclaims";
        let used = self.cluster.kubectl(&["get", kinds, "-o", "name"]);
        let mine: Vec<&str> = used.lines().filter(|name| !is_of_a_driver(name)).collect();
        if !mine.is_empty() {
            let delete = ["delete", "--timeout=300s"];
            self.cluster.kubectl(&[&delete, &mine[..]].concat());
        }
        walk::until_no_volume(&self.cluster).await;
    }

    /// Removes the files of host-path's manifests from the nodes, and looks at what is left.
    pub(crate) async fn ends(&self, directories: &[&str]) {
        for node in self.cluster.all_nodes() {
            let there = directories
                .iter()
                .copied()
                .filter(|directory| node.path(Path::new(directory)).exists());
            node.remove_data(&there.collect::<Vec<_>>()).await;
        }
        self.stock.assert_nothing_left(&self.cluster).await;
    }
}

/// The pods of the drivers are in the namespace of the tests' pods.
fn is_of_a_driver(name: &str) -> bool {
    ["pod/hostloop-", "pod/csi-hostpath"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// The image with the name that host-path's manifests have. Its bytes are the same.
fn named_as_host_path(image: &Path, scratch: &Scratch) -> PathBuf {
    let files = scratch.dir("renamed");
    machine::run("tar", &["-C", text(&files), "-xf", text(image)]);
    let manifest = files.join("manifest.json");
    let read = std::fs::read(&manifest).expect("a docker archive has a manifest");
    let mut images: Value = serde_json::from_slice(&read).expect("it is JSON");
    images[0]["RepoTags"] = json!([HOST_PATH]);
    std::fs::write(&manifest, images.to_string()).expect("it can be written");
    let renamed = scratch.path().join("host-path.tar");
    let into = ["-C", text(&files), "-cf", text(&renamed)];
    let parts = ["config.json", "layer.tar", "manifest.json"];
    machine::run("tar", &[&into[..], &parts].concat());
    renamed
}

/// An image of these programs of upstream's.
fn sidecars(programs: &[&str], scratch: &Scratch) -> PathBuf {
    let script = root().join("test/drop-in/sidecars");
    let output = scratch.path().join("sidecars.tar");
    let folder = tools::sidecars();
    let usual = ["--output", text(&output), text(&folder)];
    machine::run(text(&script), &[&usual, programs].concat());
    output
}

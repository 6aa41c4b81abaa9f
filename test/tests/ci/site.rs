//! A runner with kind, kubectl and the files of a release, and without a registry.

use std::path::{Path, PathBuf};

use hostloop_test::cluster::{Cluster, Options, Stock};
use hostloop_test::machine::{self, root, text};
use hostloop_test::scratch::Scratch;
use hostloop_test::shell::Shell;
use hostloop_test::{deployed, plugin, walk};

/// The version of everything in the checkout.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The fields are dropped in order: each needs later ones.
pub(crate) struct Site {
    /// What kind is asked for comes true: the cluster is there, but its node lacks the image.
    pub(crate) cluster: Cluster,
    stock: Stock,
    pub(crate) shell: Shell,
    /// The address of a folder with a release's files.
    pub(crate) release: String,
    pub(crate) scratch: Scratch,
}

impl Site {
    /// Starts a cluster like kind's, with one node.
    pub(crate) fn up() -> Site {
        machine::require();
        let options = Options {
            nodes: 1,
            layout: Some("kind"),
            ..Options::default()
        };
        let cluster = Cluster::up(&options);
        let scratch = Scratch::new();
        let shell = Shell::of(&cluster, scratch.dir("shell"));
        shell.has("kind", &kind(&scratch));
        Site {
            stock: Stock::take(&cluster, &[]),
            release: release(&scratch),
            cluster,
            shell,
            scratch,
        }
    }

    /// The arguments with which kind was called.
    pub(crate) fn calls_of_kind(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(calls(&self.scratch)).expect("kind was called");
        calls.lines().map(str::to_owned).collect()
    }

    /// A pod with a volume of the default class.
    pub(crate) async fn uses_the_default_class(&self) {
        self.lives(&walk::claim_and_pod("original", &[])).await;
    }

    /// A pod with a volume of this class.
    pub(crate) async fn uses(&self, class: &str) {
        let class = format!("storageClassName: {class}");
        self.lives(&walk::claim_and_pod("original", &[&class]))
            .await;
    }

    async fn lives(&self, objects: &str) {
        self.cluster.apply(objects);
        self.cluster.pod_ready("default", "original");
        self.cluster.delete(objects);
        walk::until_no_volume(&self.cluster).await;
    }

    /// Nodes have no registry, and looked for none: kubelet did not begin to pull an image.
    pub(crate) fn pulled_nothing(&self) {
        let begun = [
            "get",
            "events",
            "--all-namespaces",
            "--field-selector=reason=Pulling",
            "--output=name",
        ];
        assert_eq!(self.cluster.kubectl(&begun), "");
    }

    /// `install.yaml`, as a release has it.
    pub(crate) fn manifest_with_a_digest(&self) -> String {
        let digest = "0".repeat(64);
        let image = format!("hostloop.csi.dev/hostloop:{VERSION}@sha256:{digest}");
        let manifest = deployed::render(&["--release", "--image", &image]);
        assert!(manifest.contains(&image), "it names the digest");
        manifest
    }

    pub(crate) async fn ends(&self) {
        self.stock.assert_nothing_left(&self.cluster).await;
    }
}

fn calls(scratch: &Scratch) -> PathBuf {
    scratch.path().join("calls-of-kind")
}

/// kind, for a cluster that is there: it writes down its arguments, and loads an archive.
fn kind(scratch: &Scratch) -> String {
    let (calls, script) = (calls(scratch), root().join("scripts/cluster"));
    let (calls, script) = (text(&calls), text(&script));
    format!(
        "#!/bin/sh\necho \"$*\" >>{calls}\n\
         case $1 in load) exec {script} load --name \"$5\" -- \"$3\" ;; esac\n"
    )
}

/// The files of a release that the recipes download, for either architecture. Returns the address of
/// their folder.
fn release(scratch: &Scratch) -> String {
    let folder = scratch.dir("release");
    let image = deployed::tested_image(scratch.path().join("hostloop.tar"));
    let client = plugin::binary();
    let sh = |script: &str, args: &[&str]| {
        let script = format!("cd \"$0\" && {script}");
        machine::run("sh", &[&["-c", &script, text(&folder)], args].concat())
    };
    sh("gzip -1 <\"$1\" >image", &[text(&image)]);
    sh(
        "cp \"$1\" kubectl-hostloop && tar -czf programs kubectl-hostloop",
        &[text(&client)],
    );
    for arch in ["amd64", "arm64"] {
        for (file, name) in [
            ("image", format!("hostloop-{VERSION}-image-{arch}.tar.gz")),
            (
                "programs",
                format!("hostloop-{VERSION}-linux-{arch}.tar.gz"),
            ),
        ] {
            link(&folder, file, &name);
        }
    }
    sh("sha256sum hostloop-* >SHA256SUMS", &[]);
    format!("file://{}", text(&folder))
}

fn link(folder: &Path, file: &str, name: &str) {
    std::fs::hard_link(folder.join(file), folder.join(name)).expect("a link can be made");
}

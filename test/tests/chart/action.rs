//! The scripts of the GitHub action, without a cluster.

use std::path::Path;

use hostloop_test::machine::{root, text, try_run};
use hostloop_test::scratch::Scratch;
use hostloop_test::{deployed, machine};

use crate::objects::{Objects, of_kustomize, pod, read};

/// Runs one of the scripts and returns its output, or its error.
fn action(script: &str, args: &[&str]) -> Result<String, String> {
    try_run(text(&root().join("deploy/action").join(script)), args)
}

/// What the script `install` finds in a cluster.
#[derive(Clone, Copy, Debug)]
struct Cluster {
    /// The minor version of Kubernetes, as the API server says it.
    minor: &'static str,
    /// The served versions of the kinds of single snapshots, and of groups.
    snapshots: &'static str,
    groups: &'static str,
    /// True if hostloop is the snapshot controller.
    is_ours: bool,
}

const EMPTY: Cluster = Cluster {
    minor: "37",
    snapshots: "",
    groups: "",
    is_ours: false,
};

const IMAGE: &str = "r.example.com/h:1";

/// The script `install` with a release's manifest.
struct Install {
    scratch: Scratch,
}

impl Install {
    fn new() -> Self {
        let scratch = Scratch::new();
        let pinned = format!("{IMAGE}@sha256:{}", "0".repeat(64));
        scratch.file(
            "install.yaml",
            &deployed::render(&["--release", "--image", &pinned]),
        );
        Install { scratch }
    }

    /// The objects for a cluster, or the script's error.
    fn try_on(&self, cluster: Cluster, args: &[&str]) -> Result<Objects, String> {
        let Cluster {
            minor,
            snapshots,
            groups,
            is_ours,
        } = cluster;
        let role = if is_ours {
            "clusterrole.rbac.authorization.k8s.io/hostloop"
        } else {
            ""
        };
        let kubectl = format!(
            "#!/bin/sh
case \"$*\" in
  kustomize*) PATH=${{PATH#*:}} && exec kubectl \"$@\" ;;
  'get --raw /version') printf '{{\n  \"minor\": \"{minor}\",\n}}\n' ;;
  *' volumesnapshots.'*) echo '{snapshots}' ;;
  *' volumegroupsnapshots.'*) echo '{groups}' ;;
  *' clusterrole '*) echo '{role}' ;;
  *) echo \"not expected: $*\" >&2 && exit 1 ;;
esac
"
        );
        let folder = self.scratch.dir("bin");
        machine::script(&folder.join("kubectl"), &kubectl);
        let path = std::env::var("PATH").expect("there is a PATH");
        let path = format!("PATH={}:{path}", text(&folder));
        let script = root().join("deploy/action/install");
        let manifest = self.scratch.path().join("install.yaml");
        let print = [
            &path,
            text(&script),
            "--manifest",
            text(&manifest),
            "--print",
        ];
        let mut objects = read(&try_run("env", &[&print[..], args].concat())?);
        objects
            .remove("Namespace /hostloop")
            .expect("it has a namespace");
        Ok(objects)
    }

    fn on(&self, cluster: Cluster, args: &[&str]) -> Objects {
        self.try_on(cluster, args)
            .unwrap_or_else(|why| panic!("{cluster:?} {args:?}: {why}"))
    }
}

fn render(args: &[&str]) -> Objects {
    of_kustomize(&[&["--image", IMAGE, "--component", "registry"], args].concat())
}

#[test]
fn snapshots_by_choice_and_cluster() {
    let other = Cluster {
        snapshots: "v1 ",
        groups: "v1beta2 v1 ",
        ..EMPTY
    };
    let without_groups = Cluster {
        groups: "",
        ..other
    };
    let old_groups = Cluster {
        groups: "v1beta1 v1beta2 ",
        ..other
    };
    let ours = Cluster {
        is_ours: true,
        ..other
    };
    let controller = ["--crds", "--component", "snapshot-controller"];
    let class = ["--component", "snapshot-class"];
    let classes = [&class[..], &["--component", "group-snapshot-class"]].concat();
    let all = [&controller[..], &classes].concat();
    let all_but_groups = [&controller[..], &class].concat();
    let install = Install::new();
    for (cluster, choice, rendered) in [
        (EMPTY, "auto", &all[..]),
        (EMPTY, "true", &all[..]),
        (EMPTY, "false", &[][..]),
        (other, "auto", &classes[..]),
        (other, "true", &all[..]),
        (other, "false", &classes[..]),
        (without_groups, "auto", &class[..]),
        (without_groups, "true", &all[..]),
        (old_groups, "auto", &class[..]),
        (old_groups, "true", &all_but_groups[..]),
        (ours, "auto", &all[..]),
        (ours, "false", &classes[..]),
    ] {
        let objects = install.on(cluster, &["--snapshot-controller", choice]);
        let expected = render(rendered);
        let keys = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&objects), keys(&expected), "{choice} {cluster:?}");
        assert!(objects == expected, "{choice} {cluster:?}: {objects:#?}");
    }
}

/// Older API servers refuse what they do not know.
#[test]
fn the_action_fits_older_servers() {
    let install = Install::new();
    let older: &[&str] = &["--component", "kubernetes-1.30"];
    for (minor, components) in [("30", older), ("33+", older), ("34", &[]), ("37", &[])] {
        let cluster = Cluster { minor, ..EMPTY };
        let objects = install.on(cluster, &["--snapshot-controller", "false"]);
        assert_eq!(objects, render(components), "{minor}");
    }
    let cluster = Cluster { minor: "", ..EMPTY };
    let error = install.try_on(cluster, &[]).expect_err("no version");
    assert!(error.contains("its version"), "{error}");
}

#[test]
fn the_action_installs_what_kustomize_renders() {
    let install = Install::new();
    let pool = [
        "--pool",
        "default=/srv/p,image=1Gi,inline",
        "--default-class",
        "true",
    ];
    assert_eq!(
        install.on(
            EMPTY,
            &[&pool[..], &["--snapshot-controller", "false"]].concat()
        ),
        render(&[
            "--pool-dir",
            "/srv/p",
            "--pool-options",
            ",image=1Gi,inline",
            "--component",
            "default-class"
        ])
    );

    let pools = [
        "--pool",
        "a=/dev/vdb,wipe",
        "--pool",
        "b=/srv/b,image=1Gi",
        "--pool",
        "c=/dev/vdc",
    ];
    let objects = install.on(EMPTY, &pools);
    let (container, pod) = pod(&objects, "DaemonSet hostloop/hostloop");
    let args = container["args"].to_string();
    for arg in [
        "--pool=a=$(POOL_DIR)$(POOL_OPTIONS)",
        "--pool=b=/srv/b,image=1Gi",
        "--pool=c=/dev/vdc",
    ] {
        assert!(args.contains(&format!("{arg:?}")), "no {arg} in {args}");
    }
    let mounts = container["volumeMounts"]
        .as_array()
        .expect("there are mounts")
        .iter();
    let mounts: Vec<_> = mounts.map(|mount| mount["mountPath"].as_str()).collect();
    assert_eq!(
        mounts,
        [Some("/dev"), Some("/var/lib/kubelet"), Some("/srv/b")]
    );
    assert_eq!(pod["volumes"].as_array().map(Vec::len), Some(3));

    for (args, word) in [
        (
            ["--pool", "a=relative"],
            "--pool a=relative: write NAME=PATH",
        ),
        (["--snapshot-controller", "maybe"], "auto, true or false"),
        (["--default-class", "yes"], "true or false"),
        (["--what", "is"], "unknown argument --what"),
    ] {
        let error = install.try_on(EMPTY, &args).expect_err(word);
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_release_is_fetched_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let release = scratch.dir("release");
    let arch = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let image = format!("hostloop-9.8.7-image-{arch}.tar.gz");
    std::fs::write(release.join("install.yaml"), "kind: List\n").expect("it can be written");
    std::fs::write(release.join("image"), "the image\n").expect("it can be written");
    let sh = |script: &str| {
        let cd = format!("cd {} && {script}", text(&release));
        machine::run("sh", &["-c", &cd])
    };
    sh(&format!(
        "gzip <image >{image} && rm image && sha256sum install.yaml {image} >SHA256SUMS"
    ));
    let fetch = |to: &Path| {
        let from = format!("file://{}", text(&release));
        action(
            "fetch",
            &["--from", &from, "--version", "9.8.7", "--to", text(to)],
        )
    };
    let to = scratch.path().join("fetched");
    fetch(&to).unwrap_or_else(|why| panic!("{why}"));
    let of = |file: &str| std::fs::read_to_string(to.join(file)).expect("it was fetched");
    assert_eq!(
        [of("install.yaml"), of("image.tar")],
        ["kind: List\n", "the image\n"]
    );

    std::fs::write(release.join("install.yaml"), "kind: Pod\n").expect("it can be written");
    let error = fetch(&scratch.path().join("damaged")).expect_err("the sums differ");
    assert!(error.contains(" is damaged"), "{error}");
    sh("sed -i /install/d SHA256SUMS");
    let error = fetch(&scratch.path().join("unnamed")).expect_err("a sum is missing");
    assert!(error.contains("SHA256SUMS does not name"), "{error}");
    sh(&format!("rm {image}"));
    let error = fetch(&scratch.path().join("missing")).expect_err("a file is missing");
    assert!(error.contains("is 9.8.7 a release?"), "{error}");
}

//! The scripts of the GitHub action, without a cluster.

use std::path::Path;

use hostloop_test::machine::{root, text, try_run};
use hostloop_test::scratch::Scratch;
use hostloop_test::{deployed, machine};

use crate::objects::{of_kustomize, pod, read};

/// Runs one of the scripts and returns its output, or its error.
fn action(script: &str, args: &[&str]) -> Result<String, String> {
    try_run(text(&root().join("deploy/action").join(script)), args)
}

/// Writes a manifest like a release's, and returns its path.
fn manifest(scratch: &Scratch) -> String {
    let image = ["--image", "r.example.com/h:1", "--component", "registry"];
    let rendered = deployed::render(&[&["--overlay", "snapshot-controller"], &image[..]].concat());
    let digest = format!("image: r.example.com/h:1@sha256:{}", "0".repeat(64));
    let pinned = rendered.replace("image: r.example.com/h:1", &digest);
    assert_ne!(pinned, rendered);
    text(&scratch.file("install.yaml", &pinned)).to_owned()
}

#[test]
fn the_action_installs_what_kustomize_renders() {
    let scratch = Scratch::new();
    let manifest = manifest(&scratch);
    let print = ["--manifest", &manifest, "--print", "--snapshot-controller", "true"];
    let install = |args: &[&str]| {
        let printed = action("install", &[&print, args].concat());
        let mut objects = read(&printed.unwrap_or_else(|why| panic!("{why}")));
        objects.remove("Namespace /hostloop").expect("it has a namespace");
        objects
    };
    let image = ["--image", "r.example.com/h:1", "--component", "registry"];
    let render = |args: &[&str]| {
        of_kustomize(&[&["--overlay", "snapshot-controller"], &image[..], args].concat())
    };
    assert_eq!(install(&[]), render(&[]));
    assert_eq!(
        install(&["--pool", "default=/srv/p,image=1Gi,inline", "--default-class", "true"]),
        render(&[
            "--pool-dir",
            "/srv/p",
            "--pool-options",
            ",image=1Gi,inline",
            "--component",
            "default-class"
        ])
    );

    let pools =
        ["--pool", "a=/dev/vdb,wipe", "--pool", "b=/srv/b,image=1Gi", "--pool", "c=/dev/vdc"];
    let objects = install(&pools);
    let (container, pod) = pod(&objects, "DaemonSet hostloop/hostloop");
    let args = container["args"].to_string();
    for arg in
        ["--pool=a=$(POOL_DIR)$(POOL_OPTIONS)", "--pool=b=/srv/b,image=1Gi", "--pool=c=/dev/vdc"]
    {
        assert!(args.contains(&format!("{arg:?}")), "no {arg} in {args}");
    }
    let mounts = container["volumeMounts"].as_array().expect("there are mounts").iter();
    let mounts: Vec<_> = mounts.map(|mount| mount["mountPath"].as_str()).collect();
    assert_eq!(mounts, [Some("/dev"), Some("/var/lib/kubelet"), Some("/srv/b")]);
    assert_eq!(pod["volumes"].as_array().map(Vec::len), Some(3));

    for (args, word) in [
        (["--pool", "a=relative"], "a=relative"),
        (["--snapshot-controller", "maybe"], "auto, true or false"),
        (["--default-class", "yes"], "true or false"),
        (["--what", "is"], "--what"),
    ] {
        let error = action("install", &[&print[..], &args].concat()).expect_err(word);
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_release_is_fetched_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let release = scratch.dir("release");
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let image = format!("hostloop-9.8.7-image-{arch}.tar.gz");
    std::fs::write(release.join("install.yaml"), "kind: List\n").expect("it can be written");
    std::fs::write(release.join("image"), "the image\n").expect("it can be written");
    let sh = |script: &str| {
        let cd = format!("cd {} && {script}", text(&release));
        machine::run("sh", &["-c", &cd])
    };
    sh(&format!("gzip <image >{image} && rm image && sha256sum install.yaml {image} >SHA256SUMS"));
    let fetch = |to: &Path| {
        let from = format!("file://{}", text(&release));
        action("fetch", &["--from", &from, "--version", "9.8.7", "--to", text(to)])
    };
    let to = scratch.path().join("fetched");
    fetch(&to).unwrap_or_else(|why| panic!("{why}"));
    let of = |file: &str| std::fs::read_to_string(to.join(file)).expect("it was fetched");
    assert_eq!([of("install.yaml"), of("image.tar")], ["kind: List\n", "the image\n"]);

    std::fs::write(release.join("install.yaml"), "kind: Pod\n").expect("it can be written");
    let error = fetch(&scratch.path().join("damaged")).expect_err("the sums differ");
    assert!(error.contains("damaged"), "{error}");
    sh("sed -i /install/d SHA256SUMS");
    let error = fetch(&scratch.path().join("unnamed")).expect_err("a sum is missing");
    assert!(error.contains("SHA256SUMS does not name"), "{error}");
    sh(&format!("rm {image}"));
    let error = fetch(&scratch.path().join("missing")).expect_err("a file is missing");
    assert!(error.contains("is 9.8.7 a release?"), "{error}");
}

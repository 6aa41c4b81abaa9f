//! The scripts of the GitHub action, without a cluster.

use std::path::Path;

use hostloop_test::machine::{self, root, text, try_run};
use hostloop_test::scratch::Scratch;

/// Runs one of the scripts and returns its output, or its error.
fn action(script: &str, args: &[&str]) -> Result<String, String> {
    try_run(text(&root().join("deploy/action").join(script)), args)
}

/// The script `install` with a client and a kubectl that write down how they were called.
struct Install {
    scratch: Scratch,
}

impl Install {
    /// The client fails at this command.
    fn failing_at(command: &str) -> Self {
        let install = Install {
            scratch: Scratch::new(),
        };
        let calls = install.scratch.path().join("calls");
        let called = format!(
            "#!/bin/sh\nprintf '%s\\n' \"${{0##*/}} $*\" >>{}\n",
            text(&calls)
        );
        let bin = install.scratch.dir("bin");
        let fails = format!("{called}case \" $* \" in *' {command} '*) exit 1 ;; esac\n");
        machine::script(&bin.join("client"), &fails);
        let classes = format!(
            "{called}case \"$*\" in *'get storageclasses'*) printf 'hostloop-ext4\\nstandard\\n' ;; esac\n"
        );
        machine::script(&bin.join("kubectl"), &classes);
        install
    }

    /// What the script prints, or its error.
    fn run(&self, args: &[&str]) -> Result<String, String> {
        let bin = self.scratch.path().join("bin");
        let path = std::env::var("PATH").expect("there is a PATH");
        let path = format!("PATH={}:{path}", text(&bin));
        let client = bin.join("client");
        let script = root().join("deploy/action/install");
        let usual = [&*path, text(&script), "--client", text(&client)];
        try_run("env", &[&usual[..], args].concat())
    }

    /// The calls so far, but for what kubectl reads.
    fn calls(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.scratch.path().join("calls"));
        calls
            .unwrap_or_default()
            .lines()
            .filter(|call| !call.contains(" get storageclasses"))
            .map(str::to_owned)
            .collect()
    }
}

#[test]
fn the_client_does_what_the_inputs_say() {
    let usual = "client install --snapshot-controller auto";
    let context = "--context kind-a";
    for (args, expected) in [
        ("", vec![usual.to_owned(), "client check".to_owned()]),
        (
            "--snapshot-controller true",
            vec![
                "client install --snapshot-controller yes".to_owned(),
                "client check".to_owned(),
            ],
        ),
        (
            "--pool a=/dev/vdb,wipe --pool b=/p --snapshot-controller false",
            vec![
                "client install --pool a=/dev/vdb,wipe --pool b=/p --snapshot-controller no"
                    .to_owned(),
                "client check".to_owned(),
            ],
        ),
        (
            "--context kind-a --default-class true",
            vec![
                format!("client {context} install --snapshot-controller auto --default-class=ext4"),
                format!(
                    "kubectl {context} annotate --overwrite storageclass standard \
                     storageclass.kubernetes.io/is-default-class=false"
                ),
                format!("client {context} check"),
            ],
        ),
        (
            "-- --kubelet-dir /k",
            vec![
                "client install --kubelet-dir /k --snapshot-controller auto".to_owned(),
                "client check".to_owned(),
            ],
        ),
    ] {
        let install = Install::failing_at("nothing");
        let args: Vec<&str> = args.split_whitespace().collect();
        install
            .run(&args)
            .unwrap_or_else(|why| panic!("{args:?}: {why}"));
        assert_eq!(install.calls(), expected, "{args:?}");
    }
}

/// The log of a workflow then says what is wrong.
#[test]
fn a_failure_is_explained() {
    let (check, status) = ("client check", "client status --all-namespaces");
    let install = "client install --snapshot-controller auto";
    for (command, calls) in [
        ("install", vec![install, check, status]),
        ("check", vec![install, check, check, status]),
    ] {
        let failing = Install::failing_at(command);
        failing.run(&[]).expect_err(command);
        assert_eq!(failing.calls(), calls, "{command}");
    }
}

#[test]
fn inputs_that_say_nothing_are_refused() {
    for (args, word) in [
        (["--snapshot-controller", "maybe"], "auto, true or false"),
        (["--default-class", "yes"], "true or false"),
        (["--what", "is"], "unknown argument --what"),
    ] {
        let install = Install::failing_at("nothing");
        let error = install.run(&args).expect_err(word);
        assert!(error.contains(word), "{error}");
        assert!(install.calls().is_empty(), "{args:?}");
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
    let programs = format!("hostloop-9.8.7-linux-{arch}.tar.gz");
    std::fs::write(release.join("kubectl-hostloop"), "the client\n").expect("it can be written");
    std::fs::write(release.join("image"), "the image\n").expect("it can be written");
    let sh = |script: &str| {
        let cd = format!("cd {} && {script}", text(&release));
        machine::run("sh", &["-c", &cd])
    };
    sh(&format!(
        "gzip <image >{image} && tar -czf {programs} kubectl-hostloop && \
         rm image kubectl-hostloop && sha256sum {programs} {image} >SHA256SUMS"
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
        [of("kubectl-hostloop"), of("image.tar")],
        ["the client\n", "the image\n"]
    );

    std::fs::write(release.join(&programs), "another\n").expect("it can be written");
    let error = fetch(&scratch.path().join("damaged")).expect_err("the sums differ");
    assert!(error.contains(" is damaged"), "{error}");
    sh("sed -i /linux/d SHA256SUMS");
    let error = fetch(&scratch.path().join("unnamed")).expect_err("a sum is missing");
    assert!(error.contains("SHA256SUMS does not name"), "{error}");
    sh(&format!("rm {image}"));
    let error = fetch(&scratch.path().join("missing")).expect_err("a file is missing");
    assert!(error.contains("is 9.8.7 a release?"), "{error}");
}

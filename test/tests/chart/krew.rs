//! `scripts/release` fills in the manifest of krew, kubectl's plugin manager.

use std::path::Path;

use hostloop_test::machine::{root, text, try_run};
use hostloop_test::scratch::Scratch;
use serde_json::{Value, json};

/// Runs a function of `scripts/release` with arguments.
const FUNCTION: &str = "
set -euo pipefail
. \"$1/scripts/lib.sh\"
. \"$1/scripts/image-lib/packages.sh\"
. \"$1/scripts/release-lib/clients.sh\"
. \"$1/scripts/release-lib/krew.sh\"
shift
\"$@\"
";

fn function(words: &[&str]) -> Result<String, String> {
    let root = root();
    let bash = ["-c", FUNCTION, "bash", text(&root)];
    try_run("bash", &[&bash[..], words].concat())
}

/// The sums of an empty file, and of one with the letter a.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const LETTER: &str = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";

/// The manifest for the archives in a folder, and its platforms: the system, the architecture, the
/// archive's address and its sum.
fn manifest_for(folder: &Path, url: &str) -> (Value, Vec<Value>) {
    let printed = function(&["krew_manifest", "1.2.3", url, text(folder)]);
    let printed = printed.unwrap_or_else(|why| panic!("{why}"));
    assert!(
        !printed.contains('#'),
        "no comment of the source: {printed}"
    );
    let manifest: Value = serde_saphyr::from_str(&printed).expect("it is YAML");
    let platforms = manifest["spec"]["platforms"].as_array().expect("a list");
    let platforms = platforms
        .iter()
        .map(|one| {
            let labels = &one["selector"]["matchLabels"];
            json!([labels["os"], labels["arch"], one["uri"], one["sha256"]])
        })
        .collect();
    (manifest, platforms)
}

#[test]
fn the_manifest_names_the_archives_and_their_sums() {
    let scratch = Scratch::new();
    let url = "https://example.com/files";
    let mut expected = Vec::new();
    for (os, arch, content, sum) in [
        ("linux", "amd64", "", EMPTY),
        ("linux", "arm64", "a", LETTER),
        ("darwin", "amd64", "a", LETTER),
        ("darwin", "arm64", "", EMPTY),
        ("windows", "amd64", "a", LETTER),
    ] {
        let archive = format!("hostloop-1.2.3-{os}-{arch}.tar.gz");
        scratch.file(&archive, content);
        expected.push(json!([os, arch, format!("{url}/{archive}"), sum]));
    }
    let (manifest, platforms) = manifest_for(scratch.path(), url);
    assert_eq!(manifest["kind"], "Plugin");
    assert_eq!(manifest["metadata"]["name"], "hostloop");
    assert_eq!(manifest["spec"]["version"], "v1.2.3");
    assert_eq!(platforms, expected);
}

/// A person who makes a release on Linux has no clients for other systems.
#[test]
fn a_system_without_a_client_is_left_out() {
    let scratch = Scratch::new();
    for platform in ["linux-amd64", "linux-arm64", "darwin-arm64"] {
        scratch.file(&format!("hostloop-1.2.3-{platform}.tar.gz"), "");
    }
    let (manifest, platforms) = manifest_for(scratch.path(), "https://example.com");
    let found: Vec<String> = platforms
        .iter()
        .map(|one| format!("{}-{}", one[0], one[1]).replace('"', ""))
        .collect();
    assert_eq!(found, ["linux-amd64", "linux-arm64", "darwin-arm64"]);
    assert_eq!(manifest["spec"]["version"], "v1.2.3");
}

#[test]
fn a_missing_archive_is_an_error() {
    let scratch = Scratch::new();
    scratch.file("hostloop-1.2.3-linux-amd64.tar.gz", "");
    let words = [
        "krew_manifest",
        "1.2.3",
        "https://example.com",
        text(scratch.path()),
    ];
    let error = function(&words).expect_err("one archive is missing");
    assert!(
        error.contains("hostloop-1.2.3-linux-arm64.tar.gz"),
        "{error}"
    );
}

#[test]
fn the_files_are_in_a_folder_of_a_server() {
    for (url, is_taken) in [
        ("https://example.com/releases/v0.2.0", true),
        ("https://example.com:8443/~h/0.2.0", true),
        ("http://example.com/0.2.0", false),
        ("https://example.com/0.2.0/", false),
        ("example.com", false),
        ("https://example.com/a b", false),
        ("https://example.com/?a&b", false),
    ] {
        let checked = function(&["check_files_url", url]);
        assert_eq!(checked.is_ok(), is_taken, "{url}: {checked:?}");
        if let Err(error) = checked {
            assert!(error.contains("--files-url"), "{error}");
        }
    }
}

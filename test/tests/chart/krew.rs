//! `scripts/release` fills in the manifest of krew, kubectl's plugin manager.

use hostloop_test::machine::{root, text, try_run};
use hostloop_test::scratch::Scratch;
use serde_json::{Value, json};

/// Runs a function of `scripts/release` with arguments.
const FUNCTION: &str = "
set -euo pipefail
. \"$1/scripts/lib.sh\"
. \"$1/scripts/image-lib/packages.sh\"
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

#[test]
fn the_manifest_names_the_archives_and_their_sums() {
    let scratch = Scratch::new();
    scratch.file("hostloop-1.2.3-linux-amd64.tar.gz", "");
    scratch.file("hostloop-1.2.3-linux-arm64.tar.gz", "a");
    let url = "https://example.com/files";
    let printed = function(&["krew_manifest", "1.2.3", url, text(scratch.path())]);
    let printed = printed.unwrap_or_else(|why| panic!("{why}"));
    let manifest: Value = serde_saphyr::from_str(&printed).expect("it is YAML");
    assert_eq!(manifest["kind"], "Plugin");
    assert_eq!(manifest["metadata"]["name"], "hostloop");
    assert_eq!(manifest["spec"]["version"], "v1.2.3");
    let platforms = manifest["spec"]["platforms"].as_array().expect("a list");
    let found: Vec<Value> = platforms
        .iter()
        .map(|one| {
            json!([
                one["selector"]["matchLabels"]["arch"],
                one["uri"],
                one["sha256"]
            ])
        })
        .collect();
    let expected = [("amd64", EMPTY), ("arm64", LETTER)].map(|(arch, sum)| {
        json!([
            arch,
            format!("{url}/hostloop-1.2.3-linux-{arch}.tar.gz"),
            sum
        ])
    });
    assert_eq!(found, expected);
    assert!(
        !printed.contains('#'),
        "no comment of the source: {printed}"
    );
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

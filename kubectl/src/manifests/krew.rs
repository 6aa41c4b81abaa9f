//! Tests that krew's manifest names what `scripts/release` makes.

use serde_json::Value;

use super::{parse, text};
use crate::PLUGIN;

const MANIFEST: &str = include_str!("../../../deploy/krew/hostloop.yaml");
const RELEASE: &str = include_str!("../../../scripts/release");
const PACKAGES: &str = include_str!("../../../scripts/image-lib/packages.sh");
const CLIENTS: &str = include_str!("../../../scripts/release-lib/clients.sh");
const WORKFLOW: &str = include_str!("../../../.github/workflows/release.yml");

fn platforms(manifest: &Value) -> &[Value] {
    let platforms = manifest["spec"]["platforms"].as_array();
    platforms.map(Vec::as_slice).unwrap_or_default()
}

#[test]
fn it_has_the_shape_that_krew_reads() {
    let manifests = parse(MANIFEST);
    let [manifest] = manifests.as_slice() else {
        panic!("not one document")
    };
    let version = "krew.googlecontainertools.github.com/v1alpha2";
    assert_eq!(manifest["apiVersion"], version);
    assert_eq!(manifest["kind"], "Plugin");
    let name = text(&manifest["metadata"]["name"]);
    assert_eq!(format!("kubectl-{name}"), PLUGIN);
    assert_eq!(manifest["spec"]["version"], "vVERSION");
    // krew refuses longer ones in its index.
    let short = text(&manifest["spec"]["shortDescription"]);
    assert!(!short.is_empty() && short.len() <= 50, "{short}");
}

#[test]
fn it_names_the_archives_of_a_release() {
    let manifest = parse(MANIFEST).remove(0);
    let mut found = Vec::new();
    for platform in platforms(&manifest) {
        let labels = &platform["selector"]["matchLabels"];
        let (os, arch) = (text(&labels["os"]), text(&labels["arch"]));
        let uri = format!("URL/hostloop-VERSION-{os}-{arch}.tar.gz");
        assert_eq!(platform["uri"], uri);
        let sum = format!("SHA256_{}_{}", os.to_uppercase(), arch.to_uppercase());
        assert_eq!(platform["sha256"], sum);
        let program = if os == "windows" {
            format!("{PLUGIN}.exe")
        } else {
            PLUGIN.to_owned()
        };
        assert_eq!(platform["bin"], program);
        let files = platform["files"].as_array().into_iter().flatten();
        let files: Vec<String> = files.map(|file| text(&file["from"])).collect();
        assert_eq!(files, [program.as_str(), "LICENSE"]);
        found.push(format!("{os}-{arch}"));
    }
    let (linux, others) = found.split_at(2);
    assert_eq!(linux, ["linux-amd64", "linux-arm64"]);
    assert_eq!(others, ["darwin-amd64", "darwin-arm64", "windows-amd64"]);
}

#[test]
fn a_release_makes_these_archives() {
    for (text, part) in [
        (RELEASE, "hostloop-$version-linux-$arch.tar.gz"),
        (RELEASE, "hostloop kubectl-hostloop LICENSE"),
        (PACKAGES, "ARCHITECTURES=(amd64 arm64)"),
        (CLIENTS, "hostloop-$version-$1.tar.gz"),
        (CLIENTS, "\"$program\" LICENSE"),
        (CLIENTS, "CLIENTS=(darwin-amd64 darwin-arm64 windows-amd64)"),
        (WORKFLOW, "- client: darwin-amd64\n"),
        (WORKFLOW, "- client: darwin-arm64\n"),
        (WORKFLOW, "- client: windows-amd64\n"),
    ] {
        assert!(text.contains(part), "{part}");
    }
}

//! Tests that krew's manifest names what `scripts/release` makes.

use serde_json::Value;

use super::{parse, text};
use crate::PLUGIN;

const MANIFEST: &str = include_str!("../../../deploy/krew/hostloop.yaml");
const RELEASE: &str = include_str!("../../../scripts/release");
const PACKAGES: &str = include_str!("../../../scripts/image-lib/packages.sh");

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
    let archive = "hostloop-$version-linux-$arch.tar.gz";
    assert!(RELEASE.contains(archive), "the release has other names");
    let manifest = parse(MANIFEST).remove(0);
    let mut architectures = Vec::new();
    for platform in platforms(&manifest) {
        let labels = &platform["selector"]["matchLabels"];
        assert_eq!(labels["os"], "linux");
        let arch = text(&labels["arch"]);
        let file = archive
            .replace("$version", "VERSION")
            .replace("$arch", &arch);
        assert_eq!(platform["uri"], format!("URL/{file}"));
        let sum = format!("SHA256_{}", arch.to_uppercase());
        assert_eq!(platform["sha256"], sum);
        assert_eq!(platform["bin"], PLUGIN);
        for file in platform["files"].as_array().into_iter().flatten() {
            let from = text(&file["from"]);
            let packed = RELEASE
                .lines()
                .find(|line| line.contains("archive \"$work/static-$arch\""))
                .expect("the release packs programs");
            assert!(packed.split(' ').any(|word| word == from), "{from}");
        }
        architectures.push(arch);
    }
    assert_eq!(architectures, ["amd64", "arm64"]);
    assert!(
        PACKAGES.contains("ARCHITECTURES=(amd64 arm64)"),
        "the release has other architectures"
    );
}

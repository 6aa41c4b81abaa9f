//! What `scripts/test` builds once per version outside the checkout: third-party test programs, and
//! the last release.

use std::path::PathBuf;

use crate::machine;

/// csi-sanity: `HOSTLOOP_CSI_SANITY`.
pub fn csi_sanity() -> PathBuf {
    named("csi-sanity", "sanity", "HOSTLOOP_CSI_SANITY")
}

/// The folder of upstream's sidecars: `HOSTLOOP_SIDECARS`.
pub fn sidecars() -> PathBuf {
    named("upstream's sidecars", "interop", "HOSTLOOP_SIDECARS")
}

/// The Go host-path driver: `HOSTLOOP_HOST_PATH`.
pub fn host_path() -> PathBuf {
    named("the host-path driver", "foreign", "HOSTLOOP_HOST_PATH")
}

/// The mock driver of Kubernetes' suite: `HOSTLOOP_MOCK_DRIVER`.
pub fn mock_driver() -> PathBuf {
    named("the mock driver", "foreign", "HOSTLOOP_MOCK_DRIVER")
}

/// The client of external-snapshot-metadata: `HOSTLOOP_SNAPSHOT_METADATA_CLIENT`.
pub fn snapshot_metadata_client() -> PathBuf {
    named(
        "the client of external-snapshot-metadata",
        "snapshot-metadata",
        "HOSTLOOP_SNAPSHOT_METADATA_CLIENT",
    )
}

/// The folder of images with databases, `sqlite.tar` and `postgresql.tar`: `HOSTLOOP_DATABASE_IMAGES`.
pub fn database_images() -> PathBuf {
    named(
        "images with databases",
        "explore",
        "HOSTLOOP_DATABASE_IMAGES",
    )
}

/// Helm: `HOSTLOOP_HELM`.
pub fn helm() -> PathBuf {
    named("helm", "chart", "HOSTLOOP_HELM")
}

/// Runs Helm and returns its output, or its error.
pub fn run_helm(args: &[&str]) -> Result<String, String> {
    machine::try_run(machine::text(&helm()), args)
}

/// The folder of the last release, with its files in `tree` and its image `image.tar`:
/// `HOSTLOOP_LAST_RELEASE`.
pub fn last_release() -> PathBuf {
    named("the last release", "upgrade", "HOSTLOOP_LAST_RELEASE")
}

fn named(what: &str, step: &str, variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.unwrap_or_else(|| {
        panic!("This test needs {what}: run `scripts/test --only {step}`, or set {variable}.")
    })
}

//! Third-party test programs, built once per version outside the checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::{self, text};

const CSI_SANITY: &str = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity";
const CSI_TEST: &str = "github.com/kubernetes-csi/csi-test/v5";

/// csi-sanity: `HOSTLOOP_CSI_SANITY`, or a build from `test/tools` in the version of its go.mod.
/// Builds are kept in the user's cache directory.
pub fn csi_sanity() -> PathBuf {
    if let Some(path) = std::env::var_os("HOSTLOOP_CSI_SANITY") {
        return path.into();
    }
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools");
    let go_mod = std::fs::read_to_string(module.join("go.mod")).expect("test/tools has a go.mod");
    let version = version_of(&go_mod, CSI_TEST).expect("go.mod names csi-test's version");
    let dir = cache().join("tools").join(format!("csi-sanity-{version}")).join("bin");
    let tool = dir.join("csi-sanity");
    if !tool.is_file() {
        std::fs::create_dir_all(&dir).expect("the cache directory can be made");
        // An incomplete build has a separate name, because another run may look for the program.
        let part = dir.join(format!("csi-sanity.{}", std::process::id()));
        let compiler = machine::which("go")
            .expect("This test builds csi-sanity: install Go, or name one by HOSTLOOP_CSI_SANITY.");
        let built = Command::new(compiler)
            .args(["build", "-o", text(&part), CSI_SANITY])
            .current_dir(&module)
            .status();
        assert!(built.is_ok_and(|s| s.success()), "csi-sanity could not be built");
        std::fs::rename(&part, &tool).expect("the built tool can be moved into place");
    }
    tool
}

/// The folder of upstream's sidecars, which `scripts/test` builds from `test/interop`:
/// `HOSTLOOP_SIDECARS`.
pub fn sidecars() -> PathBuf {
    let folder = std::env::var_os("HOSTLOOP_SIDECARS").map(PathBuf::from);
    folder.expect(
        "This test needs upstream's sidecars: run `scripts/test --only interop`, or name their \
         folder by HOSTLOOP_SIDECARS.",
    )
}

fn cache() -> PathBuf {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    base.expect("HOME says where the cache is").join("hostloop")
}

/// The version without its `v`.
fn version_of(go_mod: &str, module: &str) -> Option<String> {
    let mut words = go_mod.lines().map(|line| line.split_whitespace());
    let version = words.find_map(|mut w| (w.next() == Some(module)).then(|| w.next()).flatten())?;
    version.strip_prefix('v').map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_go_mod() {
        let go_mod =
            "module x\n\ntool a.org/b/cmd/b\n\nrequire (\n\ta.org/b v1.2.3 // indirect\n)\n";
        assert_eq!(version_of(go_mod, "a.org/b").as_deref(), Some("1.2.3"));
        assert_eq!(version_of(go_mod, "a.org/c"), None);
    }
}

//! VolumeAttachments.

use super::hash::sha256;

/// The attachment name that the attach-detach controller uses and kubelet waits for.
pub(crate) fn expected_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256(&[handle, driver, node]))
}

/// True if the attach-detach controller may have chosen this name. An attachment made by hand has
/// another one, which shows no volume.
pub(crate) fn is_expected_name(name: &str) -> bool {
    let digest = name.strip_prefix("csi-");
    digest.is_some_and(|it| it.len() == 64 && it.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_kubelet_waits_for() {
        let name = expected_name("h", "csi.example", "n1");
        // The expected value is the output of `printf hcsi.examplen1 | sha256sum`.
        let sum = "cf85157d754b2a6e4ff460d9984e6fdc89bd1140f4d0a49d7ccc92c5a2eaef6e";
        assert_eq!(name, format!("csi-{sum}"));
        assert_ne!(name, expected_name("h", "csi.example", "n2"));
        assert!(is_expected_name(&name));
        for other in [
            "va",
            "csi-",
            "csi-by-hand",
            &name[..67],
            &name.replace('f', "g"),
        ] {
            assert!(!is_expected_name(other), "{other}");
        }
    }
}

//! VolumeAttachments.

use super::naming::sha256;

/// The attachment name that the attach-detach controller uses and kubelet waits for.
pub(crate) fn expected_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256(&[handle, driver, node]))
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
    }
}

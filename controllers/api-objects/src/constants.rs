//! Annotations, finalizers and parameters that users, tools and other controllers rely on, and what
//! can be a name.

/// Claim annotation: the provisioner that must create the claim's volume.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The beta form of that annotation, which older control planes write.
pub const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// Claim annotation: the class, from before the field existed.
pub const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";
/// Annotation of claims and volumes of an in-tree plugin: the CSI driver they migrated to.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// Volume annotation: the provisioner that created the volume.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Volume annotation: the name of the secret for DeleteVolume.
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
/// Volume annotation: the namespace of that secret.
pub const DELETION_SECRET_NAMESPACE: &str =
    "volume.kubernetes.io/provisioner-deletion-secret-namespace";
/// Volume annotation: the name of the secret for ControllerModifyVolume.
pub const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
/// Volume annotation: the namespace of that secret.
pub const MODIFY_SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";
/// Finalizer that keeps a PersistentVolume until its volume is deleted.
pub const VOLUME_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Finalizer that keeps a claim while volumes are cloned from it.
pub const CLONE_FINALIZER: &str = "provisioner.storage.kubernetes.io/cloning-protection";
/// Finalizer that keeps a snapshot while volumes are created from it.
pub const SNAPSHOT_FINALIZER: &str =
    "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// Annotation of a snapshot content: a restored volume may have another volume mode than its
/// source.
pub const ALLOW_MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";
/// Annotation of a PV: the size that users saw before the expansion, until kubelet is done.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// Annotation of a claim: kubelet has nothing to expand.
pub const NODE_EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
/// Claim annotation: the fault that the claim's volume is to have.
pub const FAULT: &str = "hostloop.csi.dev/fault";
/// Annotation of an attachment: the driver's node ID, for detaching after the CSINode is gone.
pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
/// Volume attribute: the identity of the process that created the volume.
pub const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
/// Volume attribute, and class parameter: the nodes that can use a volume.
pub const REACH: &str = "reach";
/// Value of [`REACH`]: all nodes that share a kernel with the node that has the volume.
pub const REACH_KERNEL: &str = "kernel";
/// The most nodes that may share a kernel: a volume's affinity has a term for each of them.
pub const MAX_SHARING_NODES: usize = 16;
/// The longest name of a node that may share a kernel: it is part of a file's name.
pub const MAX_SHARING_NODE_NAME: usize = 128;
/// The API group of snapshots.
pub const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";
/// The API group of group snapshots, their contents and classes.
pub const GROUP_SNAPSHOT_GROUP: &str = "groupsnapshot.storage.k8s.io";
/// Prefix of class parameters for the provisioner. The driver gets all other parameters.
pub const RESERVED: &str = "csi.storage.k8s.io/";
/// Class parameter: the filesystem type of volumes.
pub const FS_TYPE: &str = "csi.storage.k8s.io/fstype";
/// Class parameter: the deprecated form of the filesystem type. The driver gets this one too.
pub const FS_TYPE_OLD: &str = "fstype";

/// True if an object can have this name: a node, a volume, a claim and all others that controllers
/// read. Users can write any text where a name is expected.
pub fn is_name(name: &str) -> bool {
    name.len() <= 253
        && name
            .chars()
            .all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-' | '.'))
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_a_name() {
        let (longest, longer) = ("n".repeat(253), "n".repeat(254));
        for (name, can_be) in [
            ("a", true),
            ("node-1.example.com", true),
            (longest.as_str(), true),
            (longer.as_str(), false),
            ("", false),
            ("A", false),
            ("a/b", false),
            ("..", false),
            ("a..b", false),
            ("a-", false),
            ("?", false),
            ("?watch=true", false),
            ("a#b", false),
            ("a%2fb", false),
            ("é", false),
        ] {
            assert_eq!(is_name(name), can_be, "{name}");
        }
    }
}

//! Names users, their tools and the other controllers know the provisioner's marks by.

/// On a claim: which provisioner is to make its volume.
pub(crate) const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The same, as older control planes write it.
pub(crate) const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The class of a claim, as it was written before there was a field.
pub(crate) const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";
/// On a claim or volume of an in-tree plugin: the CSI driver that took over.
pub(crate) const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// On a volume: who made it.
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a volume: the secret DeleteVolume is called with.
pub(crate) const DELETION_SECRET_NAME: &str =
    "volume.kubernetes.io/provisioner-deletion-secret-name";
/// Its namespace.
pub(crate) const DELETION_SECRET_NAMESPACE: &str =
    "volume.kubernetes.io/provisioner-deletion-secret-namespace";
/// On a volume: the secret ControllerModifyVolume is called with.
pub(crate) const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
/// Its namespace.
pub(crate) const MODIFY_SECRET_NAMESPACE: &str =
    "volume.kubernetes.io/controller-modify-secret-namespace";
/// Keeps a volume's object until the volume is deleted.
pub(crate) const VOLUME_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Keeps a claim while volumes are cloned from it.
pub(crate) const CLONE_FINALIZER: &str = "provisioner.storage.kubernetes.io/cloning-protection";
/// Keeps a snapshot while volumes are made from it.
pub(crate) const SNAPSHOT_FINALIZER: &str =
    "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// On a snapshot content: a volume made from it may have another mode than its source.
pub(crate) const ALLOW_MODE_CHANGE: &str =
    "snapshot.storage.kubernetes.io/allow-volume-mode-change";
/// In a volume's attributes: which process made it.
pub(crate) const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
/// The group of snapshots.
pub(crate) const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";
/// Class parameters with this prefix are for the provisioner, the others for the driver.
pub(crate) const RESERVED: &str = "csi.storage.k8s.io/";
/// The filesystem of a class's volumes.
pub(crate) const FS_TYPE: &str = "csi.storage.k8s.io/fstype";
/// The same, as it was written before; the driver sees this one, too.
pub(crate) const FS_TYPE_OLD: &str = "fstype";

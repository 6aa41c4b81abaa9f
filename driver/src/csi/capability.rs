//! Reads a VolumeCapability, and decides what it means for a volume and which uses are compatible.
//! Pure.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode;

use crate::csi::validate::{Invalid, filesystem, invalid};
use crate::kernel::{FsType, LABELS};
use crate::storage::{Access, AccessMode, Capability, Format, VolumeRecord};

/// How capabilities are read.
#[derive(Clone, Debug)]
pub struct CapabilityRules {
    /// The filesystem of a mount capability that names none (`--default-fstype`).
    pub default_fs: FsType,
    /// Refuse multi-node access modes (`--reject-multi-node`).
    pub reject_multi_node: bool,
    /// Accept `volume_mount_group` (`--volume-mount-group`).
    pub mount_group: bool,
}

impl Default for CapabilityRules {
    /// The rules without any flags.
    fn default() -> CapabilityRules {
        CapabilityRules {
            default_fs: FsType::Ext4,
            reject_multi_node: false,
            mount_group: false,
        }
    }
}

/// A capability from a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestedCapability {
    capability: Capability,
    names_fs: bool,
}

impl RequestedCapability {
    /// Reads a required capability.
    pub(crate) fn read(
        field: &str,
        value: Option<&csi::VolumeCapability>,
        rules: &CapabilityRules,
    ) -> Result<RequestedCapability, Invalid> {
        let capability = capability(field, value, rules)?;
        let names_fs = match value.and_then(|v| v.access_type.as_ref()) {
            Some(AccessType::Mount(mount)) => !mount.fs_type.is_empty(),
            _ => false,
        };
        Ok(RequestedCapability {
            capability,
            names_fs,
        })
    }

    /// The capability for a volume that does not exist yet.
    pub(crate) fn plain(&self) -> &Capability {
        &self.capability
    }

    /// The filesystem that the request names.
    pub(crate) fn named_fs(&self) -> Option<FsType> {
        self.capability.access.fs().filter(|_| self.names_fs)
    }

    /// The capability for this volume, or why the volume does not support it. A mount without a
    /// filesystem means the volume's own filesystem, even if the default has changed.
    pub(crate) fn of(mut self, record: &VolumeRecord) -> Result<Capability, String> {
        if let Access::Mount { fs, .. } = &mut self.capability.access
            && !self.names_fs
        {
            *fs = own_fs(record).unwrap_or(*fs);
        }
        match unsupported(record, &self.capability) {
            None => Ok(self.capability),
            Some(why) => Err(why),
        }
    }
}

/// A required capability.
pub(crate) fn capability(
    field: &str,
    value: Option<&csi::VolumeCapability>,
    rules: &CapabilityRules,
) -> Result<Capability, Invalid> {
    let value = value.ok_or_else(|| invalid(field, "is required"))?;
    let access = match &value.access_type {
        None => return Err(invalid(format!("{field}.access_type"), "is required")),
        Some(AccessType::Block(_)) => Access::Block,
        Some(AccessType::Mount(mount)) => mount_access(&format!("{field}.mount"), mount, rules)?,
    };
    let mode = value.access_mode.as_ref().map_or(0, |m| m.mode);
    let mode = access_mode(&format!("{field}.access_mode.mode"), mode, rules)?;
    Ok(Capability { access, mode })
}

/// Mount options that panic the kernel on a filesystem error.
const PANICS: [&str; 2] = ["errors=panic", "fatal_errors=panic"];

fn mount_access(
    field: &str,
    mount: &csi::volume_capability::MountVolume,
    rules: &CapabilityRules,
) -> Result<Access, Invalid> {
    let fs = match mount.fs_type.as_str() {
        "" => rules.default_fs,
        name => filesystem(name).map_err(|why| invalid(format!("{field}.fs_type"), why))?,
    };
    // CSI says that mount flags may be sensitive, so the message does not contain them.
    if mount
        .mount_flags
        .iter()
        .any(|f| f.is_empty() || f.contains(['\0', '\n']))
    {
        return Err(invalid(
            format!("{field}.mount_flags"),
            "has an empty or broken flag",
        ));
    }
    let words: Vec<&str> = mount
        .mount_flags
        .iter()
        .flat_map(|flags| flags.split(','))
        .collect();
    if let Some(flag) = PANICS.iter().find(|flag| words.contains(flag)) {
        let why = format!(
            "has {flag}, and a damaged volume must not stop the node: leave it out of mountOptions"
        );
        return Err(invalid(format!("{field}.mount_flags"), why));
    }
    let group = match mount.volume_mount_group.as_str() {
        "" => None,
        _ if !rules.mount_group => {
            return Err(invalid(
                format!("{field}.volume_mount_group"),
                "is not supported",
            ));
        }
        gid => Some(gid.parse().map_err(|_| {
            invalid(
                format!("{field}.volume_mount_group"),
                "is not a decimal group ID",
            )
        })?),
    };
    Ok(Access::Mount {
        fs,
        flags: mount.mount_flags.clone(),
        group,
    })
}

fn access_mode(field: &str, mode: i32, rules: &CapabilityRules) -> Result<AccessMode, Invalid> {
    let mode = match Mode::try_from(mode) {
        Err(_) => return Err(invalid(field, format!("{mode} is not a known mode"))),
        Ok(Mode::Unknown) => return Err(invalid(field, "is required")),
        Ok(Mode::SingleNodeWriter) => AccessMode::SingleNodeWriter,
        Ok(Mode::SingleNodeReaderOnly) => AccessMode::SingleNodeReaderOnly,
        Ok(Mode::MultiNodeReaderOnly) => AccessMode::MultiNodeReaderOnly,
        Ok(Mode::MultiNodeSingleWriter) => AccessMode::MultiNodeSingleWriter,
        Ok(Mode::MultiNodeMultiWriter) => AccessMode::MultiNodeMultiWriter,
        Ok(Mode::SingleNodeSingleWriter) => AccessMode::SingleNodeSingleWriter,
        Ok(Mode::SingleNodeMultiWriter) => AccessMode::SingleNodeMultiWriter,
    };
    if rules.reject_multi_node && mode.is_multi_node() {
        return Err(invalid(
            field,
            "speaks of several nodes, and a volume is on one",
        ));
    }
    Ok(mode)
}

/// Why a volume does not support a capability; `None` if it does. The access mode does not count:
/// every mode works on the volume's one node. [`access_mode`] refuses modes that the flags forbid,
/// and [`compatible`] modes of two uses that can't share the volume.
pub(crate) fn unsupported(record: &VolumeRecord, requested: &Capability) -> Option<String> {
    if record.capabilities.is_empty()
        || record
            .capabilities
            .iter()
            .any(|made| same_use(&made.access, &requested.access))
    {
        return None;
    }
    let made = record.capabilities.first().map(|c| word(&c.access))?;
    let requested = word(&requested.access);
    Some(format!("the volume was made as {made}, not as {requested}"))
}

/// The filesystem a volume was created for, or carries.
pub(crate) fn own_fs(record: &VolumeRecord) -> Option<FsType> {
    let made_for = record.capabilities.iter().find_map(|c| c.access.fs());
    made_for.or(carried_fs(record.format))
}

/// The filesystem that a volume or snapshot carries, if it is known. Without a complete format
/// there is no user data. Staging probes the device of a raw volume.
pub(crate) fn carried_fs(format: Format) -> Option<FsType> {
    match format {
        Format::Done(fs) => Some(fs),
        Format::None | Format::Formatting(_) | Format::Raw => None,
    }
}

/// True if both use the raw device, or both use the same filesystem.
fn same_use(a: &Access, b: &Access) -> bool {
    a.fs() == b.fs()
}

/// An access in a word, for messages.
pub(crate) fn word(access: &Access) -> &'static str {
    access.fs().map_or("a block device", FsType::as_str)
}

/// True if a mode lets a volume be at several targets of one node (CSI, the second table of
/// NodePublishVolume).
pub(crate) fn many_targets(mode: AccessMode) -> bool {
    mode == AccessMode::SingleNodeMultiWriter || mode.is_multi_node()
}

/// True if a volume published or staged for one capability can also serve the other. Several PVs
/// can name one volume, each with its own mode, if all modes allow sharing.
///
/// The other mount flags may differ: users change those of a PV in use. The filesystem is mounted
/// once, with the flags of its staging, and new ones hold from the next staging on. Labels of
/// SELinux protect one pod from another.
pub(crate) fn compatible(present: &Capability, requested: &Capability) -> bool {
    let modes = present.mode == requested.mode
        || many_targets(present.mode) && many_targets(requested.mode);
    same_use(&present.access, &requested.access)
        && modes
        && labels(&present.access) == labels(&requested.access)
}

/// The mount options that label files for SELinux. Only they may have commas, in quotes.
pub(crate) fn labels(access: &Access) -> Vec<String> {
    let mut is_quoted = false;
    let options = access.flags().join(",");
    let words = options.split(|c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    });
    let labels = words.filter(|word| {
        word.split_once('=')
            .is_some_and(|(name, _)| LABELS.contains(&name))
    });
    labels.map(str::to_owned).collect()
}

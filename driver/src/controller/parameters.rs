//! Reads and checks class parameters and mutable parameters. Pure.
//!
//! An unknown key is an error that names the key, so that a mistyped parameter is never ignored
//! unless [`UnknownKeys`] says so. A provisioner adds the keys under [`METADATA`], not the user;
//! only [`filesystem`] reads one of them.

use hostloop_controllers::api::claim_fault::{CLASS_PARAMETER, ClaimFault};

use crate::csi::validate::{self, Invalid, invalid};
use crate::kernel::{FsType, check_mkfs_options};
use crate::storage::{self, Consistency, Provisioning, Reach, Settings};

mod class_parameter;
mod fault_disk;
mod shell_split;
#[cfg(test)]
mod tests;

pub use class_parameter::{CLASS_PARAMETERS, ClassParameter};
use class_parameter::{FSTYPE, Reader, reader};
pub use fault_disk::LimitsChange;
use fault_disk::{FAULT_DISK, FAULT_DISK_CACHE};
pub use shell_split::words;

/// Prefix of the keys that Kubernetes' provisioners add to parameters ("…/pvc/name").
pub const METADATA: &str = "csi.storage.k8s.io/";
/// The parameter of a class, and the attribute of an inline volume, that names the pool.
pub const POOL: &str = "pool";
/// The parameter that makes a volume thin or thick.
const PROVISIONING: &str = "provisioning";

/// The maximum size of a parameter map, in bytes (CSI, "Size Limits").
const MAX_MAP: usize = 4096;

/// The largest read-ahead, in KiB: 1 GiB.
const MAX_READ_AHEAD: u32 = 1 << 20;

pub use crate::record::Parameters;
use crate::record::{KEEP_DELETED_BASES, deleted_bases};

/// What becomes of a key that this driver does not have (`--ignore-unknown-parameters`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownKeys {
    /// It is an error.
    Rejected,
    /// It has no effect, as in the host-path driver.
    Ignored,
}

/// The parameters of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// The pool's name; `None` means the first configured pool.
    pub pool: Option<String>,
    /// Additional arguments for mkfs.
    pub mkfs_options: Vec<String>,
    /// The volume settings of the class.
    pub changes: SettingsChange,
    /// A filesystem may be mounted that users of a block device wrote.
    pub allow_volume_mode_change: bool,
    /// The fault of a volume, unless its claim says another one.
    pub fault: Option<ClaimFault>,
    /// `reach`: the nodes that may use its volumes.
    pub reach: Reach,
    /// `faultDisk`: volumes are on fault disks.
    pub fault_disk: bool,
    /// `faultDiskCache`: the size of their write caches in bytes.
    pub fault_disk_cache: u64,
    /// Keys without an effect ([`UnknownKeys::Ignored`]).
    pub ignored: Vec<String>,
}

impl Class {
    /// Checks `mkfsOptions` against the options that this filesystem's mkfs may get. `None` means a
    /// raw block volume, for which mkfs never runs.
    pub fn check_mkfs_options(&self, fs: Option<FsType>) -> Result<(), Invalid> {
        let checked = fs.map_or(Ok(()), |fs| check_mkfs_options(fs, &self.mkfs_options));
        checked.map_err(|why| invalid("parameters[\"mkfsOptions\"]", why))
    }
}

/// Requested volume settings; `None` where a parameter is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsChange {
    /// `provisioning`: `thin` or `thick`.
    pub provisioning: Option<Provisioning>,
    /// `discard`: `true` or `false`.
    pub discard: Option<bool>,
    /// `directIO`: `true` or `false`.
    pub direct_io: Option<bool>,
    /// `readAheadKiB`: a number.
    pub read_ahead_kib: Option<u32>,
    /// `riops`, `wiops`, `rbps` and `wbps`: the limits of a fault disk.
    pub limits: LimitsChange,
}

impl SettingsChange {
    /// Fills absent settings from `others`.
    pub fn or(self, others: SettingsChange) -> SettingsChange {
        SettingsChange {
            provisioning: self.provisioning.or(others.provisioning),
            discard: self.discard.or(others.discard),
            direct_io: self.direct_io.or(others.direct_io),
            read_ahead_kib: self.read_ahead_kib.or(others.read_ahead_kib),
            limits: self.limits.or(others.limits),
        }
    }

    /// The settings of a new volume. By default it is thin (or like its source), discards freed
    /// space if it is thin, and uses direct I/O.
    pub fn create(self, inherited: Option<Provisioning>) -> Result<Settings, Invalid> {
        let provisioning = self.provisioning.or(inherited).unwrap_or_default();
        checked(Settings {
            provisioning,
            discard: self.discard.unwrap_or(provisioning == Provisioning::Thin),
            direct_io: self.direct_io.unwrap_or(true),
            read_ahead_kib: self.read_ahead_kib,
        })
    }

    /// The settings after ControllerModifyVolume. Absent parameters keep their values, except that
    /// a thick volume never discards.
    pub fn modify(self, now: &Settings) -> Result<Settings, Invalid> {
        let provisioning = self.provisioning.unwrap_or(now.provisioning);
        let keeps = now.discard && provisioning == Provisioning::Thin;
        checked(Settings {
            provisioning,
            discard: self.discard.unwrap_or(keeps),
            direct_io: self.direct_io.unwrap_or(now.direct_io),
            read_ahead_kib: self.read_ahead_kib.or(now.read_ahead_kib),
        })
    }

    fn set(&mut self, key: &str, value: &str) -> Option<Result<(), &'static str>> {
        match reader(key)? {
            Reader::Change(read) => Some(read(self, value)),
            Reader::Pool | Reader::Class(_) | Reader::Provisioner => None,
        }
    }
}

fn checked(settings: Settings) -> Result<Settings, Invalid> {
    if settings.provisioning == Provisioning::Thick && settings.discard {
        // A discard would give up the reserved blocks.
        return Err(invalid(
            "discard",
            "is for thin volumes: a thick one keeps its space",
        ));
    }
    Ok(settings)
}

/// Reads the `parameters` of CreateVolume and GetCapacity.
pub fn class(parameters: &Parameters, unknown: UnknownKeys) -> Result<Class, Invalid> {
    let mut class = Class::default();
    for (key, value) in own("parameters", parameters)? {
        let read = match (reader(key), unknown) {
            (Some(Reader::Pool), _) => continue,
            (Some(Reader::Class(read)), _) => read(&mut class, value),
            (Some(Reader::Change(read)), _) => {
                read(&mut class.changes, value).map_err(str::to_owned)
            }
            (Some(Reader::Provisioner) | None, UnknownKeys::Rejected) => {
                Err("is not a parameter of this driver".to_owned())
            }
            (Some(Reader::Provisioner) | None, UnknownKeys::Ignored) => {
                class.ignored.push(key.to_owned());
                Ok(())
            }
        };
        read.map_err(|why| invalid(field("parameters", key), why))?;
    }
    class.pool = pool(parameters)?.map(str::to_owned);
    if class.fault_disk_cache > 0 && !class.fault_disk {
        let why = "is for volumes on fault disks: set faultDisk, too";
        return Err(invalid(field("parameters", FAULT_DISK_CACHE), why));
    }
    let fault = class.fault.as_ref();
    let is_of_fault_disks = fault.is_some_and(|it| it.kind.is_of_fault_disks());
    if is_of_fault_disks && !class.fault_disk {
        let why = "is a fault of volumes on fault disks: set faultDisk, too";
        return Err(invalid(field("parameters", CLASS_PARAMETER), why));
    }
    Ok(class)
}

/// The pool that a class names, by any of the keys for it; `None` means the first configured pool.
/// It checks no other parameter.
pub fn pool(parameters: &Parameters) -> Result<Option<&str>, Invalid> {
    let mut pool: Option<&String> = None;
    for (key, value) in parameters {
        if !matches!(reader(key), Some(Reader::Pool)) {
            continue;
        }
        if value.is_empty() || pool.is_some_and(|other| other != value) {
            let why = "does not name one pool";
            return Err(invalid(field("parameters", key), why));
        }
        pool = Some(value);
    }
    Ok(pool.map(String::as_str))
}

/// Reads `mutable_parameters`. If `accepted` is not empty, only its names are allowed. An accepted
/// name that the driver does not know has no effect, as in the host-path driver.
pub fn mutable(parameters: &Parameters, accepted: &[String]) -> Result<SettingsChange, Invalid> {
    let mut changes = SettingsChange::default();
    for (key, value) in own("mutable_parameters", parameters)? {
        let listed = accepted.iter().any(|name| name == key);
        if !listed && !accepted.is_empty() {
            return Err(invalid(
                field("mutable_parameters", key),
                "is not among the accepted parameters",
            ));
        }
        match changes.set(key, value) {
            Some(set) => set.map_err(|why| invalid(field("mutable_parameters", key), why))?,
            None if listed => {}
            None => {
                return Err(invalid(
                    field("mutable_parameters", key),
                    "is not a mutable parameter of this driver",
                ));
            }
        }
    }
    Ok(changes)
}

/// The name of an entry, for messages.
fn field(map: &str, key: &str) -> String {
    format!("{map}[{key:?}]")
}

/// True if these parameters request a thick volume. It checks no other parameter.
pub fn makes_thick(parameters: &Parameters) -> bool {
    let requested = parameters
        .get(PROVISIONING)
        .map(|value| provisioning(value));
    requested == Some(Ok(Provisioning::Thick))
}

/// A field of VolumeSnapshotClass that some classes set as a parameter too.
pub const DELETION_POLICY: &str = "deletionPolicy";
/// A parameter of the host-path driver: whether its archive of a volume may lack files that can't
/// be read. Here a snapshot is of the volume's blocks, so both values mean the same.
const IGNORE_FAILED_READ: &str = "ignoreFailedRead";

/// The parameter that makes a snapshot a power cut.
pub const CONSISTENCY: &str = "consistency";

/// Why the number of deleted snapshots that keep their images is wrong.
const NOT_A_NUMBER_OF_BASES: &str = "is not a number from 0 to 8";

/// Reads the `parameters` of a snapshot: the state of its volume that it is to show. It ignores
/// `deletionPolicy`, which can't override the field of that name in the class.
pub fn snapshot(parameters: &Parameters, unknown: UnknownKeys) -> Result<Consistency, Invalid> {
    let mut requested = Consistency::Frozen;
    for (key, value) in own("parameters", parameters)? {
        match (key, unknown) {
            (CONSISTENCY, _) => {
                requested =
                    consistency(value).map_err(|why| invalid(field("parameters", key), why))?;
            }
            (KEEP_DELETED_BASES, _) => {
                deleted_bases(value)
                    .ok_or_else(|| invalid(field("parameters", key), NOT_A_NUMBER_OF_BASES))?;
            }
            (IGNORE_FAILED_READ, _) => {
                boolean(value).map_err(|why| invalid(field("parameters", key), why))?;
            }
            (DELETION_POLICY, _) | (_, UnknownKeys::Ignored) => {}
            (_, UnknownKeys::Rejected) => {
                let why = "is not a parameter of snapshots";
                return Err(invalid(field("parameters", key), why));
            }
        }
    }
    Ok(requested)
}

/// Reads the `parameters` of a group, as [`snapshot`] does. Its members are deleted together, as a
/// whole.
pub fn group(parameters: &Parameters, unknown: UnknownKeys) -> Result<Consistency, Invalid> {
    if parameters.contains_key(KEEP_DELETED_BASES) {
        let why = "is for single snapshots: the images of a group go with it";
        return Err(invalid(field("parameters", KEEP_DELETED_BASES), why));
    }
    snapshot(parameters, unknown)
}

/// Why a fault is refused without `--enable-faults`.
pub const FAULTS_ARE_OFF: &str =
    "is a fault, which this driver does not serve: start it with --enable-faults";

/// The error for a fault of a class without `--enable-faults`.
pub fn refused_preset() -> Invalid {
    invalid(field("parameters", CLASS_PARAMETER), FAULTS_ARE_OFF)
}

/// The error for a fault disk without `--enable-faults`.
pub fn refused_fault_disk() -> Invalid {
    invalid(field("parameters", FAULT_DISK), FAULTS_ARE_OFF)
}

/// The error for a power cut that is not possible.
pub fn refused_powercut(why: &str) -> Invalid {
    invalid(field("parameters", CONSISTENCY), format!("powercut {why}"))
}

/// The error of a pool that refuses a power cut, with the parameter that requests it.
pub fn of_powercut(error: storage::Error) -> storage::Error {
    match error {
        storage::Error::Refused(why) => {
            let refused = refused_powercut(&format!("is not possible: {why}"));
            storage::Error::Refused(refused.to_string())
        }
        error => error,
    }
}

/// The parameters that [`snapshot`] accepted, but that have no effect.
pub fn ignored(accepted: &Parameters) -> impl Iterator<Item = (&str, &str)> {
    users(accepted)
        .filter(|(key, _)| ![IGNORE_FAILED_READ, CONSISTENCY, KEEP_DELETED_BASES].contains(key))
}

/// The filesystem that a class names, if any. A provisioner passes all class parameters to
/// GetCapacity, but this key is all it passes about the volumes themselves.
pub fn filesystem(parameters: &Parameters) -> Result<Option<FsType>, Invalid> {
    match parameters.get(FSTYPE).filter(|name| !name.is_empty()) {
        None => Ok(None),
        Some(name) => validate::filesystem(name)
            .map(Some)
            .map_err(|why| invalid(format!("parameters[{FSTYPE:?}]"), why)),
    }
}

/// True if two maps are equal without the keys of a provisioner.
pub fn same(a: &Parameters, b: &Parameters) -> bool {
    users(a).eq(users(b))
}

fn users(parameters: &Parameters) -> impl Iterator<Item = (&str, &str)> {
    let all = parameters.iter().map(|(k, v)| (k.as_str(), v.as_str()));
    all.filter(|(key, _)| !key.starts_with(METADATA))
}

/// The entries of a map without a provisioner's keys. Checks the map's size.
fn own<'a>(
    field: &str,
    parameters: &'a Parameters,
) -> Result<impl Iterator<Item = (&'a str, &'a str)>, Invalid> {
    let bytes: usize = parameters.iter().map(|(k, v)| k.len() + v.len()).sum();
    if bytes > MAX_MAP {
        let why = format!("have {bytes} bytes, more than {MAX_MAP}");
        return Err(invalid(field, why));
    }
    Ok(users(parameters))
}

fn provisioning(value: &str) -> Result<Provisioning, &'static str> {
    Provisioning::parse(value).ok_or("is neither thin nor thick")
}

fn reach(value: &str) -> Result<Reach, &'static str> {
    Reach::parse(value).ok_or("is neither node nor kernel")
}

fn consistency(value: &str) -> Result<Consistency, &'static str> {
    [Consistency::Frozen, Consistency::Powercut]
        .into_iter()
        .find(|known| known.as_str() == value)
        .ok_or("is neither frozen nor powercut")
}

fn boolean(value: &str) -> Result<bool, &'static str> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("is neither true nor false"),
    }
}

fn read_ahead(value: &str) -> Result<u32, &'static str> {
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    let number = value.parse().ok().filter(|n| *n <= MAX_READ_AHEAD);
    // `parse` would accept a leading plus.
    (number.filter(|_| digits)).ok_or("is not a number of KiB from 0 to 1048576")
}

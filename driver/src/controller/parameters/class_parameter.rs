//! The table of class parameters: what each is called, what it may say, and how it is read. It is
//! also the source of `docs/reference/class-parameters.md`.

use hostloop_controllers::api::claim_fault::{CLASS_PARAMETER, ClaimFault};
use hostloop_controllers::api::constants::REACH;

use super::fault_disk::{FAULT_DISK, FAULT_DISK_CACHE, cache, limit};
use super::{
    Class, POOL, PROVISIONING, SettingsChange, boolean, provisioning, reach, read_ahead, words,
};
use crate::csi::identity::ALLOW_VOLUME_MODE_CHANGE;

/// How a parameter's value is read. The error says what is wrong with it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reader {
    /// It names the class's pool ([`super::pool`]).
    Pool,
    /// Only classes have it.
    Class(fn(&mut Class, &str) -> Result<(), String>),
    /// Classes have it, and a VolumeAttributesClass can change it later.
    Change(fn(&mut SettingsChange, &str) -> Result<(), &'static str>),
    /// The provisioner passes it in the volume's capability.
    Provisioner,
}

/// A parameter of a StorageClass.
#[derive(Clone, Copy, Debug)]
pub struct ClassParameter {
    /// Its key.
    pub name: &'static str,
    /// The values that it may have, for people.
    pub values: &'static str,
    /// What a class without it means, for people.
    pub default: &'static str,
    /// When a VolumeAttributesClass may change it, for people; empty if never.
    pub changes: &'static str,
    pub(super) reader: Reader,
}

/// The parameters of a StorageClass. Those of a VolumeAttributesClass are among them.
pub const CLASS_PARAMETERS: &[ClassParameter] = &[
    ClassParameter {
        name: FSTYPE,
        values: "`ext4`, `xfs` (from 300 MiB), `btrfs` (from 110 MiB; after a growth, at least 256 MiB)",
        default: "`ext4`, or `--default-fstype`",
        changes: "",
        reader: Reader::Provisioner,
    },
    ClassParameter {
        name: POOL,
        values: "a pool's name",
        default: "the first pool",
        changes: "",
        reader: Reader::Pool,
    },
    ClassParameter {
        name: "kind",
        values: "the same as `pool`",
        default: "",
        changes: "",
        reader: Reader::Pool,
    },
    ClassParameter {
        name: PROVISIONING,
        values: "`thin`: blocks are allocated when they are written; `thick`: all of them at once",
        default: "as the source; without one, `thin`",
        changes: "yes",
        reader: Reader::Change(|changes, value| {
            changes.provisioning = Some(provisioning(value)?);
            Ok(())
        }),
    },
    ClassParameter {
        name: "discard",
        values: "`true`: what is deleted in the volume is freed in the pool; `false`",
        default: "`true` for a thin volume. A thick volume never discards",
        changes: "yes, but not of a mounted XFS",
        reader: Reader::Change(|changes, value| {
            changes.discard = Some(boolean(value)?);
            Ok(())
        }),
    },
    ClassParameter {
        name: "directIO",
        values: "`true`: the loop device does not use the node's page cache; `false`",
        default: "`true`",
        changes: "yes",
        reader: Reader::Change(|changes, value| {
            changes.direct_io = Some(boolean(value)?);
            Ok(())
        }),
    },
    ClassParameter {
        name: "readAheadKiB",
        values: "a number of KiB from 0 to 1048576",
        default: "the kernel's",
        changes: "yes",
        reader: Reader::Change(|changes, value| {
            changes.read_ahead_kib = Some(read_ahead(value)?);
            Ok(())
        }),
    },
    ClassParameter {
        name: "mkfsOptions",
        values: "mkfs options for the filesystem's layout, such as `-m 0 -L data` \
                 ([which](../running.md#classes))",
        default: "none",
        changes: "",
        reader: Reader::Class(|class, value| {
            class.mkfs_options = words(value)?;
            Ok(())
        }),
    },
    ClassParameter {
        name: ALLOW_VOLUME_MODE_CHANGE,
        values: "`true`: a filesystem may come from the bytes of a block device \
                 ([why not](../running.md#block-devices-and-filesystems)); `false`",
        default: "`false`",
        changes: "",
        reader: Reader::Class(|class, value| {
            class.allow_volume_mode_change = boolean(value)?;
            Ok(())
        }),
    },
    ClassParameter {
        name: REACH,
        values: "`node`: only pods of one node use a volume; `kernel`: pods of all nodes that share its \
                 node's kernel ([how](../shared.md)). Only with `--kernels` and `--enable-attach`",
        default: "`node`",
        changes: "",
        reader: Reader::Class(|class, value| {
            class.reach = reach(value)?;
            Ok(())
        }),
    },
    ClassParameter {
        name: CLASS_PARAMETER,
        values: "a fault of its volumes such as `gone,for=5m`, unless the annotation of a claim says \
                 another one ([which](../faults.md#faults-of-classes)). Only with `--enable-faults`",
        default: "none",
        changes: "",
        reader: Reader::Class(|class, value| {
            let read = ClaimFault::parse(value);
            class.fault = Some(read.map_err(|why| format!("is not a fault: {why}"))?);
            Ok(())
        }),
    },
    ClassParameter {
        name: FAULT_DISK,
        values: "`true`: its volumes are on [fault disks](../faults.md#fault-disks). Only with \
                 `--enable-faults`; `false`",
        default: "`false`",
        changes: "",
        reader: Reader::Class(|class, value| {
            class.fault_disk = boolean(value)?;
            Ok(())
        }),
    },
    ClassParameter {
        name: FAULT_DISK_CACHE,
        values: "the size of a fault disk's write cache in bytes, from 0 to 268435456, a multiple of \
                 1048576",
        default: "`0`: none",
        changes: "",
        reader: Reader::Class(|class, value| {
            class.fault_disk_cache = cache(value)?;
            Ok(())
        }),
    },
    ClassParameter {
        name: "riops",
        values: "the limit of a fault disk for reads by the second, from 10; `0`: no limit",
        default: "no limit",
        changes: "yes",
        reader: Reader::Change(|changes, value| {
            limit(value, &mut changes.limits, |limits| &mut limits.riops)
        }),
    },
    ClassParameter {
        name: "wiops",
        values: "the limit of a fault disk for writes and discards by the second, from 10; `0`: no limit",
        default: "no limit",
        changes: "yes",
        reader: Reader::Change(|changes, value| {
            limit(value, &mut changes.limits, |limits| &mut limits.wiops)
        }),
    },
    ClassParameter {
        name: "rbps",
        values: "the limit of a fault disk for bytes read by the second, from 1048576; `0`: no limit",
        default: "no limit",
        changes: "yes",
        reader: Reader::Change(|changes, value| {
            limit(value, &mut changes.limits, |limits| &mut limits.rbps)
        }),
    },
    ClassParameter {
        name: "wbps",
        values: "the limit of a fault disk for bytes written by the second, from 1048576; `0`: no limit",
        default: "no limit",
        changes: "yes",
        reader: Reader::Change(|changes, value| {
            limit(value, &mut changes.limits, |limits| &mut limits.wbps)
        }),
    },
];

/// The parameter that names a volume's filesystem.
pub(super) const FSTYPE: &str = "csi.storage.k8s.io/fstype";

/// The reader of a parameter; `None` for one that no class has.
pub(super) fn reader(name: &str) -> Option<Reader> {
    let known = CLASS_PARAMETERS.iter().find(|one| one.name == name);
    known.map(|parameter| parameter.reader)
}

#[cfg(test)]
mod tests {
    use hostloop_document::{check_named_table, table};

    use super::*;

    #[test]
    fn the_reference_has_every_parameter() {
        let rows: Vec<[String; 4]> = CLASS_PARAMETERS
            .iter()
            .map(|parameter| {
                [
                    format!("`{}`", parameter.name),
                    parameter.values.to_owned(),
                    parameter.default.to_owned(),
                    parameter.changes.to_owned(),
                ]
            })
            .collect();
        let head = ["Parameter", "Values", "Default", "Can change later"];
        check_named_table(
            "docs/reference/class-parameters.md",
            "parameters",
            &table(head, &rows),
            "driver/src/controller/parameters/class_parameter.rs",
        );
    }

    #[test]
    fn what_can_change_says_so() {
        for parameter in CLASS_PARAMETERS {
            let is_change = matches!(parameter.reader, Reader::Change(_));
            assert_eq!(
                is_change,
                !parameter.changes.is_empty(),
                "{}",
                parameter.name
            );
        }
        assert!(FSTYPE.starts_with(crate::controller::parameters::METADATA));
    }
}

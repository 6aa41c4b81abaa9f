//! Inline ephemeral volumes: made, formatted and mounted at the pod's path by NodePublishVolume,
//! and deleted by NodeUnpublishVolume. Kubelet names one by a handle of its own, which the
//! volume's record maps to its ID; there is no other state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_proto::csi;

use super::capability::Asked;
use super::stage::Wanted;
use super::view::View;
use super::{Error, Node, Result, options, paths};
use crate::controller::parameters::{self, METADATA};
use crate::pool::{self, Access, Capability, Format, NewVolume, VolumeHandle, VolumeRecord};
use crate::request::{Invalid, Range, invalid};

/// The attribute that says how large a volume is to be, as Kubernetes writes quantities.
const SIZE: &str = "size";

/// What the attributes of an inline volume ask for.
#[derive(Clone, Debug, Default, PartialEq)]
struct Attributes {
    /// In bytes, if it is said.
    size: Option<u64>,
    /// The others: parameters, as a class has them.
    parameters: BTreeMap<String, String>,
}

/// Reads `volume_context`. What kubelet adds to it (the pod's name, tokens) is none of it.
fn attributes(context: &BTreeMap<String, String>) -> std::result::Result<Attributes, Invalid> {
    let mut read = Attributes::default();
    for (key, value) in context.iter().filter(|(k, _)| !k.starts_with(METADATA)) {
        match key.as_str() {
            SIZE => {
                let size = pool::config::size(value)
                    .map_err(|e| invalid("volume_context[\"size\"]", e.to_string()))?;
                read.size = Some(size);
            }
            _ => {
                read.parameters.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(read)
}

/// The volume to make. At least what its filesystem needs, as CreateVolume has it.
fn new_volume(
    handle: &str,
    attributes: Attributes,
    class: parameters::Class,
    capability: &Capability,
    default_bytes: u64,
) -> Result<NewVolume> {
    let Access::Mount { fs, .. } = capability.access else {
        let why = "is a block device, which an inline volume can't be";
        return Err(invalid("volume_capability", why).into());
    };
    let range = Range {
        required: attributes.size.unwrap_or(default_bytes),
        limit: None,
    };
    let size = range.size(fs.minimum_bytes());
    Ok(NewVolume {
        name: handle.to_owned(),
        capacity_bytes: size.ok_or_else(|| invalid("volume_context[\"size\"]", "is too large"))?,
        capabilities: vec![capability.clone()],
        parameters: attributes.parameters,
        mutable_parameters: BTreeMap::new(),
        settings: class.changes.create(None)?,
        mkfs_options: class.mkfs_options,
        source: None,
        inline: Some(handle.to_owned()),
    })
}

impl Node {
    pub(super) fn publish_inline(
        &self,
        req: &csi::NodePublishVolumeRequest,
        target: PathBuf,
        asked: Asked,
    ) -> Result<()> {
        let record = self.inline(req, &asked)?;
        let capability = asked.of(&record)?;
        let wanted = Wanted {
            path: target,
            read_only: req.readonly || capability.mode.is_read_only(),
            capability,
        };
        self.same_readonly(&record, &wanted)?;
        let made = paths::make_directory(&wanted.path);
        let staged = match &made {
            Ok(_) => self.stage_at(&record, &wanted),
            Err(_) => Ok(()),
        };
        let made_it = matches!(made, Ok(true));
        made.and(staged).inspect_err(|_| {
            self.drop_unused(&record);
            if made_it && let Err(error) = paths::remove(&wanted.path) {
                let path = wanted.path.display();
                tracing::warn!(target_path = %path, %error, "a failed publication left it");
            }
        })
    }

    /// The volume of a request, made if it is not there yet.
    fn inline(
        &self,
        req: &csi::NodePublishVolumeRequest,
        asked: &Asked,
    ) -> Result<Arc<VolumeRecord>> {
        let handle = VolumeHandle::Inline(req.volume_id.clone());
        match self.pools.volume(&handle) {
            Err(pool::Error::NoVolume(_)) => {}
            found => return Ok(found?),
        }
        let attributes = attributes(&req.volume_context)?;
        let class = parameters::class(&attributes.parameters).map_err(in_context)?;
        let pool = self.pools.named(class.pool.as_deref());
        let pool = pool.map_err(|error| match error {
            pool::Error::UnknownPool(_) => {
                Error::Invalid(invalid("volume_context", error.to_string()))
            }
            other => other.into(),
        })?;
        let default_bytes = self.config.default_inline_bytes;
        let new = new_volume(
            &req.volume_id,
            attributes,
            class,
            asked.plain(),
            default_bytes,
        )?;
        Ok(self.pools.create_volume(&pool, new)?)
    }

    /// A volume that is at the target already is as writable as is asked for.
    fn same_readonly(&self, record: &VolumeRecord, wanted: &Wanted) -> Result<()> {
        let Access::Mount { fs, flags, .. } = &wanted.capability.access else {
            return Ok(());
        };
        let asked = options::options(*fs, flags, &record.settings, wanted.read_only).read_only;
        let view = View::take(self.pools.kernel().as_ref(), &self.owner(record)?)?;
        match view.mount_at(&wanted.path) {
            Some(entry) if entry.read_only() != asked => Err(Error::AlreadyExists(
                "published at this path already, and readonly differs".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Deletes a volume whose first publication failed: nobody may come back for it. One that was
    /// published before has a pod's data in it, and waits for NodeUnpublishVolume.
    fn drop_unused(&self, record: &VolumeRecord) {
        let deleted = self
            .pools
            .volume(&VolumeHandle::Id(record.id))
            .and_then(|now| match (now.format, &now.stage) {
                (Format::Done(_), _) | (_, Some(_)) => Ok(()),
                _ => self.pools.delete_volume(&now.id),
            });
        if let Err(error) = deleted {
            tracing::warn!(volume = %record.id, %error, "a failed inline volume is left behind");
        }
    }

    pub(super) fn unpublish_inline(&self, id: &str, target: &Path) -> Result<()> {
        match self.pools.volume(&VolumeHandle::Inline(id.to_owned())) {
            // The volume is published elsewhere: nothing of it is here, and it stays.
            Ok(record) if record.stage.as_ref().is_some_and(|s| s.path != target) => {
                return self.nothing_at(target);
            }
            Ok(record) => {
                self.unstage_recorded(&record, target)?;
                self.pools.delete_volume(&record.id)?;
            }
            // Deleted already, by a call that was cut short after it.
            Err(pool::Error::NoVolume(_)) => self.nothing_at(target)?,
            Err(other) => return Err(other.into()),
        }
        paths::remove(target)
    }
}

/// A parameter of an inline volume came in its context.
fn in_context(mut why: Invalid) -> Invalid {
    if let Some(rest) = why.field.strip_prefix("parameters") {
        why.field = format!("volume_context{rest}");
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{AccessMode, Provisioning};
    use crate::sys::FsType;

    fn context(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        let entries = entries.iter();
        entries
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn read(entries: &[(&str, &str)], fs: FsType) -> Result<NewVolume> {
        let attributes = attributes(&context(entries))?;
        let class = parameters::class(&attributes.parameters).map_err(in_context)?;
        let capability = Capability {
            access: Access::Mount {
                fs,
                flags: Vec::new(),
                group: None,
            },
            mode: AccessMode::SingleNodeWriter,
        };
        new_volume("csi-x", attributes, class, &capability, 1 << 30)
    }

    #[test]
    fn the_size_is_what_is_asked_for_and_at_least_what_the_filesystem_needs() {
        type Context = &'static [(&'static str, &'static str)];
        let table: &[(Context, FsType, u64)] = &[
            (&[], FsType::Ext4, 1 << 30),
            (
                &[("size", "64Mi"), ("csi.storage.k8s.io/pod.name", "p")],
                FsType::Ext4,
                64 << 20,
            ),
            (&[("size", "5000")], FsType::Ext4, 1 << 20),
            (&[("size", "64Mi")], FsType::Xfs, 300 << 20),
            (&[("size", "1048577")], FsType::Ext4, (1 << 20) + 4096),
        ];
        for (entries, fs, expected) in table {
            let new = read(entries, *fs).unwrap();
            assert_eq!(new.capacity_bytes, *expected, "{entries:?}");
            assert_eq!(new.inline.as_deref(), Some("csi-x"));
        }
    }

    #[test]
    fn attributes_are_class_parameters() {
        let thick = read(&[("provisioning", "thick")], FsType::Ext4).unwrap();
        assert_eq!(thick.settings.provisioning, Provisioning::Thick);
        let table = [
            ("sise", "1Gi", "volume_context[\"sise\"]"),
            ("size", "much", "volume_context[\"size\"]"),
            ("size", "-1", "volume_context[\"size\"]"),
            ("discard", "perhaps", "volume_context[\"discard\"]"),
        ];
        for (key, value, field) in table {
            match read(&[(key, value)], FsType::Ext4) {
                Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
                other => panic!("{key}={value}: {other:?}"),
            }
        }
    }
}

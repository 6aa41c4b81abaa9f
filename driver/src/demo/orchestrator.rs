//! What an orchestrator does with a volume, call by call, with kubelet's paths: make, attach,
//! stage, publish, and back the same way.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use hostloop_proto::csi;
use hostloop_proto::csi::controller_client::ControllerClient;
use hostloop_proto::csi::node_client::NodeClient;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use uuid::Uuid;

use crate::status::units::{bytes, shorten};

use super::child::NODE_ID;
use super::error::{Error, Result};
use super::ledger::Ledger;
use super::world::{Volume, World};

/// What a new volume is to be.
#[derive(Clone, Debug, Default)]
pub(super) struct Want {
    /// Size in bytes.
    pub(super) bytes: u64,
    /// As a raw block device.
    pub(super) block: bool,
    /// With several writers on the node, or one (the default).
    pub(super) many_pods: bool,
    /// Made from this.
    pub(super) source: Option<csi::VolumeContentSource>,
    /// Class parameters.
    pub(super) parameters: BTreeMap<String, String>,
    /// Said of it when it is made.
    pub(super) note: &'static str,
}

/// A snapshot as a source.
pub(super) fn from_snapshot(id: &str) -> Option<csi::VolumeContentSource> {
    let snapshot_id = id.to_owned();
    Some(csi::VolumeContentSource {
        r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id })),
    })
}

/// A volume as a source.
pub(super) fn from_volume(id: &str) -> Option<csi::VolumeContentSource> {
    let volume_id = id.to_owned();
    Some(csi::VolumeContentSource {
        r#type: Some(Type::Volume(VolumeSource { volume_id })),
    })
}

/// At least this many bytes.
pub(super) fn at_least(bytes: u64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes: bytes.try_into().unwrap_or(i64::MAX),
        limit_bytes: 0,
    })
}

/// A size on the wire as bytes.
pub(super) fn size(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or_default()
}

impl World {
    /// A way of using a volume.
    pub(super) fn capability(&self, want: &Want) -> csi::VolumeCapability {
        let mode = match want.many_pods {
            true => Mode::SingleNodeMultiWriter,
            false => Mode::SingleNodeWriter,
        };
        csi::VolumeCapability {
            access_type: Some(match want.block {
                true => AccessType::Block(BlockVolume {}),
                false => AccessType::Mount(MountVolume {
                    fs_type: self.setup.fs.as_str().to_owned(),
                    ..MountVolume::default()
                }),
            }),
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }

    /// CreateVolume, under a name as a provisioner makes them.
    pub(super) fn create(
        &mut self,
        name: &'static str,
        want: &Want,
    ) -> Result<csi::CreateVolumeRequest> {
        let request = csi::CreateVolumeRequest {
            name: format!("pvc-{}", Uuid::new_v4()),
            capacity_range: at_least(want.bytes),
            volume_capabilities: vec![self.capability(want)],
            parameters: want.parameters.clone(),
            volume_content_source: want.source.clone(),
            accessibility_requirements: self.topology.clone().map(|here| {
                csi::TopologyRequirement {
                    requisite: vec![here.clone()],
                    preferred: vec![here],
                }
            }),
            ..csi::CreateVolumeRequest::default()
        };
        let about = format!("{name}, {}{}", bytes(want.bytes), want.note);
        let sent = request.clone();
        let answer = self.call("CreateVolume", about, async |channel| {
            ControllerClient::new(channel).create_volume(sent).await
        })?;
        let made = answer
            .volume
            .ok_or_else(Error::lacks("CreateVolume", "a volume"))?;
        self.aliases.insert(made.volume_id.clone(), name.to_owned());
        let volume = Volume {
            id: made.volume_id,
            pv: request.name.clone(),
            capability: self.capability(want),
            bytes: size(made.capacity_bytes),
            context: made.volume_context,
            publish_context: BTreeMap::new(),
            attached: false,
            staging: None,
            targets: BTreeMap::new(),
        };
        self.volumes.insert(name, volume);
        Ok(request)
    }

    /// ControllerPublishVolume.
    pub(super) fn attach(&mut self, name: &'static str) -> Result<()> {
        let volume = self.volume(name)?;
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume.id.clone(),
            node_id: NODE_ID.to_owned(),
            volume_capability: Some(volume.capability.clone()),
            volume_context: volume.context.clone(),
            ..csi::ControllerPublishVolumeRequest::default()
        };
        let about = format!("{name} to {NODE_ID}");
        let answer = self.call("ControllerPublishVolume", about, async |channel| {
            ControllerClient::new(channel)
                .controller_publish_volume(request)
                .await
        })?;
        let volume = self.volume_mut(name)?;
        volume.publish_context = answer.publish_context;
        volume.attached = true;
        Ok(())
    }

    /// NodeStageVolume, in a directory made for it as kubelet does.
    pub(super) fn stage(&mut self, name: &'static str) -> Result<()> {
        let volume = self.volume(name)?;
        let path = match volume.is_block() {
            true => self.tree.block_staging(&volume.pv),
            false => self.tree.staging(&self.driver_name, &volume.id),
        };
        let request = csi::NodeStageVolumeRequest {
            volume_id: volume.id.clone(),
            publish_context: volume.publish_context.clone(),
            staging_target_path: path.display().to_string(),
            volume_capability: Some(volume.capability.clone()),
            volume_context: volume.context.clone(),
            ..csi::NodeStageVolumeRequest::default()
        };
        make_dirs(&path)?;
        Ledger::put(&mut self.ledger.stagings, &request.volume_id, &path);
        self.ledger.save(&self.tree)?;
        self.call("NodeStageVolume", name, async |channel| {
            NodeClient::new(channel).node_stage_volume(request).await
        })?;
        self.volume_mut(name)?.staging = Some(path);
        Ok(())
    }

    /// NodePublishVolume to a new pod; gives the pod's UID and where it has the volume.
    pub(super) fn publish(
        &mut self,
        name: &'static str,
        readonly: bool,
    ) -> Result<(String, PathBuf)> {
        let pod = Uuid::new_v4().to_string();
        let volume = self.volume(name)?;
        let path = match volume.is_block() {
            true => self.tree.block_target(&pod, &volume.pv),
            false => self.tree.target(&pod, &volume.pv),
        };
        let staging = volume.staging.as_deref().unwrap_or(Path::new(""));
        let request = csi::NodePublishVolumeRequest {
            volume_id: volume.id.clone(),
            publish_context: volume.publish_context.clone(),
            staging_target_path: staging.display().to_string(),
            target_path: path.display().to_string(),
            volume_capability: Some(volume.capability.clone()),
            readonly,
            volume_context: with_pod(&volume.context, &pod, false),
            ..csi::NodePublishVolumeRequest::default()
        };
        let how = if readonly { ", read-only" } else { "" };
        self.publish_to(format!("{name} to pod {pod}{how}"), request)?;
        self.volume_mut(name)?
            .targets
            .insert(pod.clone(), path.clone());
        Ok((pod, path))
    }

    /// NodePublishVolume as it stands, its target noted first.
    pub(super) fn publish_to(
        &mut self,
        about: String,
        request: csi::NodePublishVolumeRequest,
    ) -> Result<()> {
        let path = PathBuf::from(&request.target_path);
        make_dirs(path.parent().unwrap_or(Path::new("/")))?;
        Ledger::put(&mut self.ledger.targets, &request.volume_id, &path);
        self.ledger.save(&self.tree)?;
        self.call("NodePublishVolume", about, async |channel| {
            NodeClient::new(channel).node_publish_volume(request).await
        })?;
        Ok(())
    }

    /// Attach, stage and publish: what brings a volume into a pod. Gives where the pod has it.
    pub(super) fn bring_up(&mut self, name: &'static str) -> Result<PathBuf> {
        self.attach(name)?;
        self.stage(name)?;
        Ok(self.publish(name, false)?.1)
    }

    /// NodeUnpublishVolume for one pod, whose directories go as kubelet removes them.
    pub(super) fn unpublish(&mut self, name: &'static str, pod: &str) -> Result<()> {
        let volume = self.volume(name)?;
        let Some(path) = volume.targets.get(pod).cloned() else {
            return Ok(());
        };
        let id = volume.id.clone();
        self.unpublish_from(format!("{name} from pod {pod}"), &id, &path)?;
        self.volume_mut(name)?.targets.remove(pod);
        Ok(())
    }

    /// NodeUnpublishVolume as it stands.
    pub(super) fn unpublish_from(&mut self, about: String, id: &str, path: &Path) -> Result<()> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: path.display().to_string(),
        };
        self.call("NodeUnpublishVolume", about, async |channel| {
            NodeClient::new(channel)
                .node_unpublish_volume(request)
                .await
        })?;
        let gone = !path.exists();
        if !gone {
            self.narrator
                .check(format!("{} is gone", self.tree.below(path)), false);
        }
        Ledger::take(&mut self.ledger.targets, path);
        self.ledger.save(&self.tree)
    }

    /// NodeUnstageVolume; the directory goes as kubelet removes it.
    pub(super) fn unstage(&mut self, name: &'static str) -> Result<()> {
        let volume = self.volume(name)?;
        let Some(path) = volume.staging.clone() else {
            return Ok(());
        };
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: volume.id.clone(),
            staging_target_path: path.display().to_string(),
        };
        self.call("NodeUnstageVolume", name, async |channel| {
            NodeClient::new(channel).node_unstage_volume(request).await
        })?;
        // Only if it is empty: what is mounted or left there is not the orchestrator's to delete.
        std::fs::remove_dir(&path).map_err(Error::io("rmdir", &path))?;
        Ledger::take(&mut self.ledger.stagings, &path);
        self.ledger.save(&self.tree)?;
        self.volume_mut(name)?.staging = None;
        Ok(())
    }

    /// ControllerUnpublishVolume.
    pub(super) fn detach(&mut self, name: &'static str) -> Result<()> {
        let volume = self.volume(name)?;
        if !volume.attached {
            return Ok(());
        }
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: volume.id.clone(),
            node_id: NODE_ID.to_owned(),
            ..csi::ControllerUnpublishVolumeRequest::default()
        };
        let about = format!("{name} from {NODE_ID}");
        self.call("ControllerUnpublishVolume", about, async |channel| {
            ControllerClient::new(channel)
                .controller_unpublish_volume(request)
                .await
        })?;
        self.volume_mut(name)?.attached = false;
        Ok(())
    }

    /// DeleteVolume.
    pub(super) fn delete(&mut self, name: &'static str) -> Result<()> {
        let request = csi::DeleteVolumeRequest {
            volume_id: self.volume(name)?.id.clone(),
            ..csi::DeleteVolumeRequest::default()
        };
        self.call("DeleteVolume", name, async |channel| {
            ControllerClient::new(channel).delete_volume(request).await
        })?;
        self.volumes.remove(name);
        Ok(())
    }

    /// The whole way back: out of every pod, off the node, gone.
    pub(super) fn take_down(&mut self, name: &'static str) -> Result<()> {
        let pods: Vec<String> = self.volume(name)?.targets.keys().cloned().collect();
        for pod in pods {
            self.unpublish(name, &pod)?;
        }
        self.unstage(name)?;
        self.detach(name)?;
        self.delete(name)
    }
}

/// What kubelet adds for a pod.
pub(super) fn with_pod(
    context: &BTreeMap<String, String>,
    pod: &str,
    ephemeral: bool,
) -> BTreeMap<String, String> {
    let mut context = context.clone();
    let name = format!("pod-{}", shorten(pod).replace('…', "-"));
    for (key, value) in [
        ("csi.storage.k8s.io/pod.name", name.as_str()),
        ("csi.storage.k8s.io/pod.namespace", "demo"),
        ("csi.storage.k8s.io/pod.uid", pod),
        ("csi.storage.k8s.io/serviceAccount.name", "default"),
        (
            "csi.storage.k8s.io/ephemeral",
            if ephemeral { "true" } else { "false" },
        ),
    ] {
        context.insert(key.to_owned(), value.to_owned());
    }
    context
}

/// Makes a directory and those above it, with kubelet's mode.
pub(super) fn make_dirs(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(path)
        .map_err(Error::io("mkdir", path))
}

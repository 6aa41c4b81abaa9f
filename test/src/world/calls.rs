//! The RPCs behind the steps: each sends its request and records the answer.

use std::collections::BTreeMap;
use std::path::Path;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use tonic::{Code, Status};

use super::{Group, Snapshot, Volume, World};
use crate::client::{Csi, at_least, map, mounted};
use crate::driver::NODE;
use crate::machine;
use crate::pools::MIB;
use crate::steps::{Name, Origin, Parameters, Spec};

impl World {
    pub(super) async fn create(
        &mut self,
        csi: &Csi,
        name: Name,
        spec: Spec,
        from: Option<Origin>,
    ) -> Result<(), Status> {
        let (source, data) = match from {
            None => (None, None),
            Some(Origin::Snapshot(snapshot)) => {
                let snapshot = &self.snapshots[snapshot];
                let snapshot_id = snapshot.id.clone();
                (Some(Type::Snapshot(SnapshotSource { snapshot_id })), snapshot.data)
            }
            Some(Origin::Member(group, member)) => {
                let snapshot = &self.groups[group].snapshots[member];
                let snapshot_id = snapshot.id.clone();
                (Some(Type::Snapshot(SnapshotSource { snapshot_id })), snapshot.data)
            }
            Some(Origin::Volume(volume)) => {
                let volume = self.volume(volume);
                let volume_id = volume.id.clone();
                (Some(Type::Volume(VolumeSource { volume_id })), volume.data)
            }
        };
        let bytes = spec.mib * MIB;
        let request = csi::CreateVolumeRequest {
            name: format!("pvc-{name}"),
            capacity_range: at_least(bytes),
            volume_capabilities: vec![spec.capability()],
            parameters: map(spec.parameters),
            volume_content_source: source
                .map(|r#type| csi::VolumeContentSource { r#type: Some(r#type) }),
            ..Default::default()
        };
        let answer = csi.call(request).await?;
        let made = answer.volume.expect("CreateVolume answers a volume");
        let size = u64::try_from(made.capacity_bytes).expect("a size");
        assert!(size >= bytes, "{name} has {size} bytes");
        let volume = Volume {
            id: made.volume_id,
            spec,
            inline: false,
            attached: false,
            staged: false,
            targets: BTreeMap::new(),
            data,
            modified: &[],
        };
        self.volumes.entry(name).or_insert(volume);
        Ok(())
    }

    pub(super) async fn attach(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        let volume = self.volume_mut(name);
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume.id.clone(),
            node_id: NODE.to_owned(),
            volume_capability: Some(volume.spec.capability()),
            ..Default::default()
        };
        csi.call(request).await?;
        volume.attached = true;
        Ok(())
    }

    pub(super) async fn detach(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        let volume = self.volume_mut(name);
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: volume.id.clone(),
            node_id: NODE.to_owned(),
            ..Default::default()
        };
        csi.call(request).await?;
        volume.attached = false;
        Ok(())
    }

    pub(super) async fn stage(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        let staging = self.staging(name);
        std::fs::create_dir_all(&staging).expect("a staging path can be made");
        let volume = self.volume_mut(name);
        let request = csi::NodeStageVolumeRequest {
            volume_id: volume.id.clone(),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(volume.spec.capability()),
            ..Default::default()
        };
        csi.call(request).await?;
        volume.staged = true;
        Ok(())
    }

    pub(super) async fn unstage(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        let staging_target_path = self.staging(name).display().to_string();
        let volume = self.volume_mut(name);
        let volume_id = volume.id.clone();
        csi.call(csi::NodeUnstageVolumeRequest { volume_id, staging_target_path }).await?;
        volume.staged = false;
        Ok(())
    }

    pub(super) async fn publish(
        &mut self,
        csi: &Csi,
        name: Name,
        target: Name,
        readonly: bool,
    ) -> Result<(), Status> {
        let path = self.target(name, target);
        make_parent(&path);
        let staging_target_path = self.staging(name).display().to_string();
        let volume = self.volume_mut(name);
        let request = csi::NodePublishVolumeRequest {
            volume_id: volume.id.clone(),
            staging_target_path,
            target_path: path.display().to_string(),
            volume_capability: Some(volume.spec.capability()),
            readonly,
            ..Default::default()
        };
        csi.call(request).await?;
        volume.targets.insert(target, readonly);
        Ok(())
    }

    pub(super) async fn inline(
        &mut self,
        csi: &Csi,
        name: Name,
        target: Name,
        mib: u64,
    ) -> Result<(), Status> {
        let path = self.target(name, target);
        make_parent(&path);
        let spec = Spec::fs("ext4", mib);
        let id = inline_id(name);
        let size = format!("{mib}Mi");
        let request = csi::NodePublishVolumeRequest {
            volume_id: id.clone(),
            target_path: path.display().to_string(),
            volume_capability: Some(mounted("ext4", Mode::SingleNodeWriter)),
            volume_context: map(&[
                ("csi.storage.k8s.io/ephemeral", "true"),
                ("csi.storage.k8s.io/pod.name", "pod"),
                ("size", &size),
            ]),
            ..Default::default()
        };
        csi.call(request).await?;
        let volume = Volume {
            id,
            spec,
            inline: true,
            attached: false,
            staged: false,
            targets: BTreeMap::from([(target, false)]),
            data: None,
            modified: &[],
        };
        self.volumes.entry(name).or_insert(volume);
        Ok(())
    }

    pub(super) async fn unpublish(
        &mut self,
        csi: &Csi,
        name: Name,
        target: Name,
    ) -> Result<(), Status> {
        let target_path = self.target(name, target).display().to_string();
        let volume_id = self.volume(name).id.clone();
        csi.call(csi::NodeUnpublishVolumeRequest { volume_id, target_path }).await?;
        let volume = self.volume_mut(name);
        volume.targets.remove(target);
        if volume.inline {
            self.volumes.remove(name);
        }
        Ok(())
    }

    pub(super) async fn expand(&mut self, csi: &Csi, name: Name, mib: u64) -> Result<(), Status> {
        let volume = self.volume_mut(name);
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume.id.clone(),
            capacity_range: at_least(mib * MIB),
            volume_capability: Some(volume.spec.capability()),
            ..Default::default()
        };
        let answer = csi.call(request).await?;
        if answer.node_expansion_required && volume.staged {
            match self.expand_on_node(csi, name, mib).await {
                Err(status) if must_be_unmounted(&status) => self.stage_again(csi, name).await?,
                expanded => expanded?,
            }
        }
        self.volume_mut(name).spec.mib = mib;
        Ok(())
    }

    async fn expand_on_node(&self, csi: &Csi, name: Name, mib: u64) -> Result<(), Status> {
        let volume = self.volume(name);
        let target = volume.targets.keys().next();
        // Kubelet passes the staging path while no target is published.
        let at = target.map_or_else(|| self.staging(name), |t| self.target(name, t));
        let request = csi::NodeExpandVolumeRequest {
            volume_id: volume.id.clone(),
            volume_path: at.display().to_string(),
            capacity_range: at_least(mib * MIB),
            staging_target_path: self.staging(name).display().to_string(),
            volume_capability: Some(volume.spec.capability()),
            ..Default::default()
        };
        csi.call(request).await.map(drop)
    }

    /// A pod restart: everything is unmounted, and mounted again.
    async fn stage_again(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        let targets = self.volume(name).targets.clone();
        for target in targets.keys() {
            self.unpublish(csi, name, target).await?;
        }
        self.unstage(csi, name).await?;
        // Recorded already here, so that a retry after a crash mounts it again.
        let volume = self.volume_mut(name);
        (volume.staged, volume.targets) = (true, targets.clone());
        self.stage(csi, name).await?;
        for (target, read_only) in targets {
            self.publish(csi, name, target, read_only).await?;
        }
        Ok(())
    }

    pub(super) async fn snapshot(
        &mut self,
        csi: &Csi,
        name: Name,
        volume: Name,
    ) -> Result<(), Status> {
        let Volume { id, spec, data, .. } = self.volume(volume).clone();
        let request = csi::CreateSnapshotRequest {
            source_volume_id: id,
            name: format!("snapshot-{name}"),
            ..Default::default()
        };
        let answer = csi.call(request).await?;
        let made = answer.snapshot.expect("CreateSnapshot answers a snapshot");
        assert!(made.ready_to_use, "a snapshot is answered when it is complete");
        self.snapshots.entry(name).or_insert(Snapshot { id: made.snapshot_id, spec, data });
        Ok(())
    }

    pub(super) async fn group(
        &mut self,
        csi: &Csi,
        name: Name,
        volumes: &[Name],
    ) -> Result<(), Status> {
        let source_volume_ids: Vec<_> = volumes.iter().map(|v| self.volume(v).id.clone()).collect();
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name: format!("group-{name}"),
            source_volume_ids: source_volume_ids.clone(),
            ..Default::default()
        };
        let answer = csi.call(request).await?;
        let made = answer.group_snapshot.expect("a group is answered");
        assert!(made.ready_to_use, "a group is answered when it is complete");
        assert_eq!(made.snapshots.len(), volumes.len(), "one snapshot of each volume");
        let member = |volume: &Name| {
            let Volume { id, spec, data, .. } = self.volume(volume).clone();
            let member = made.snapshots.iter().find(|s| s.source_volume_id == id);
            Snapshot {
                id: member.expect("a snapshot of each volume").snapshot_id.clone(),
                spec,
                data,
            }
        };
        let group =
            Group { snapshots: volumes.iter().map(member).collect(), id: made.group_snapshot_id };
        self.groups.entry(name).or_insert(group);
        Ok(())
    }

    pub(super) async fn delete_snapshot(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        let snapshot_id = self.snapshots[name].id.clone();
        let secrets = BTreeMap::new();
        csi.call(csi::DeleteSnapshotRequest { snapshot_id, secrets }).await?;
        self.snapshots.remove(name);
        Ok(())
    }

    pub(super) async fn delete_group(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        let (id, snapshot_ids) = self.group_ids(name);
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: id.to_owned(),
            snapshot_ids,
            ..Default::default()
        };
        csi.call(request).await?;
        self.groups.remove(name);
        Ok(())
    }

    pub(super) async fn delete(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        let volume_id = self.volume(name).id.clone();
        let secrets = BTreeMap::new();
        csi.call(csi::DeleteVolumeRequest { volume_id, secrets }).await?;
        self.volumes.remove(name);
        Ok(())
    }

    pub(super) async fn modify(
        &mut self,
        csi: &Csi,
        name: Name,
        parameters: Parameters,
    ) -> Result<(), Status> {
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: self.volume(name).id.clone(),
            mutable_parameters: map(parameters),
            ..Default::default()
        };
        csi.call(request).await?;
        self.volume_mut(name).modified = parameters;
        Ok(())
    }
}

/// A mounted ext4 grows only for a process with CAP_SYS_RESOURCE, which many sandboxes lack.
fn must_be_unmounted(status: &Status) -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let refused = status.code() == Code::FailedPrecondition;
    if !refused || machine::has_capability(CAP_SYS_RESOURCE) {
        return false;
    }
    machine::not_run("growing a mounted ext4", "this machine withholds CAP_SYS_RESOURCE");
    true
}

/// A handle in kubelet's form: the same for the same volume of the same pod.
fn inline_id(name: Name) -> String {
    let digit = |b: u8| format!("{b:02x}");
    let hex: String = name.bytes().cycle().take(32).map(digit).collect();
    format!("csi-{hex}")
}

fn make_parent(path: &Path) {
    let parent = path.parent().expect("a target path has a parent");
    std::fs::create_dir_all(parent).expect("a target's parent can be made");
}

//! The RPCs behind the steps: each sends its request and records the answer.

use std::collections::BTreeMap;
use std::path::Path;

use hostloop_proto::csi;
use tonic::{Code, Status};

use super::{Group, Snapshot, Volume, World};
use crate::client::{Csi, at_least, map, new_volume};
use crate::pools::MIB;
use crate::steps::{Name, Origin, Parameters, Spec};
use crate::{machine, requests};

impl World {
    pub(super) async fn create(
        &mut self,
        csi: &Csi,
        name: Name,
        spec: Spec,
        from: Option<Origin>,
    ) -> Result<(), Status> {
        let of = |snapshot: &Snapshot| (requests::of_snapshot(&snapshot.id), snapshot.data);
        let (volume_content_source, data) = match from {
            None => (None, None),
            Some(Origin::Snapshot(snapshot)) => of(&self.snapshots[snapshot]),
            Some(Origin::Member(group, member)) => of(&self.groups[group].snapshots[member]),
            Some(Origin::Volume(volume)) => {
                let volume = self.volume(volume);
                (requests::of_volume(&volume.id), volume.data)
            }
        };
        let bytes = spec.mib * MIB;
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![spec.capability()],
            parameters: map(spec.parameters),
            volume_content_source,
            ..new_volume(&format!("pvc-{name}"), bytes)
        };
        let answer = csi.call(request).await?;
        let made = answer.volume.expect("CreateVolume answers a volume");
        let size = u64::try_from(made.capacity_bytes).expect("a size");
        assert!(size >= bytes, "{name} has {size} bytes");
        let volume = Volume {
            data,
            ..Volume::new(made.volume_id, spec)
        };
        self.volumes.entry(name).or_insert(volume);
        Ok(())
    }

    pub(super) async fn attach(&self, csi: &Csi, name: Name) -> Result<(), Status> {
        let volume = self.volume(name);
        let request = csi::ControllerPublishVolumeRequest {
            volume_capability: Some(volume.spec.capability()),
            ..requests::attach(&volume.id)
        };
        csi.call(request).await.map(drop)
    }

    pub(super) async fn detach(&self, csi: &Csi, name: Name) -> Result<(), Status> {
        csi.call(requests::detach(self.id(name))).await.map(drop)
    }

    pub(super) async fn stage(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        let staging = self.staging(name);
        std::fs::create_dir_all(&staging).expect("a staging path can be made");
        let volume = self.volume_mut(name);
        let request = csi::NodeStageVolumeRequest {
            volume_capability: Some(volume.spec.capability()),
            ..requests::stage(&volume.id, staging)
        };
        csi.call(request).await?;
        volume.staged = true;
        Ok(())
    }

    pub(super) async fn unstage(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        let staging = self.staging(name);
        let volume = self.volume_mut(name);
        csi.call(requests::unstage(&volume.id, staging)).await?;
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
        let staging = self.staging(name);
        let volume = self.volume_mut(name);
        let request = csi::NodePublishVolumeRequest {
            volume_capability: Some(volume.spec.capability()),
            readonly,
            ..requests::publish(&volume.id, staging, path)
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
            volume_context: map(&[
                ("csi.storage.k8s.io/ephemeral", "true"),
                ("csi.storage.k8s.io/pod.name", "pod"),
                ("size", &size),
            ]),
            ..requests::publish(&id, "", path)
        };
        csi.call(request).await?;
        let targets = BTreeMap::from([(target, false)]);
        let volume = Volume {
            inline: true,
            targets,
            ..Volume::new(id, spec)
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
        let path = self.target(name, target);
        csi.call(requests::unpublish(self.id(name), path)).await?;
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
                Err(status) if must_be_unmounted(&status) => {
                    self.stage_again(csi, name).await?;
                    // If the growth failed, the volume is mounted all the same. It grows at the next
                    // staging.
                    if self.expand_on_node(csi, name, mib).await.is_err() {
                        self.stage_again(csi, name).await?;
                    }
                }
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
        let request = requests::snapshot(&format!("snapshot-{name}"), &id);
        let answer = csi.call(request).await?;
        let made = answer.snapshot.expect("CreateSnapshot answers a snapshot");
        assert!(
            made.ready_to_use,
            "a snapshot is answered when it is complete"
        );
        self.snapshots.entry(name).or_insert(Snapshot {
            id: made.snapshot_id,
            spec,
            data,
        });
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
        assert_eq!(
            made.snapshots.len(),
            volumes.len(),
            "one snapshot of each volume"
        );
        let member = |volume: &Name| {
            let Volume { id, spec, data, .. } = self.volume(volume).clone();
            let member = made.snapshots.iter().find(|s| s.source_volume_id == id);
            Snapshot {
                id: member
                    .expect("a snapshot of each volume")
                    .snapshot_id
                    .clone(),
                spec,
                data,
            }
        };
        let group = Group {
            snapshots: volumes.iter().map(member).collect(),
            id: made.group_snapshot_id,
        };
        self.groups.entry(name).or_insert(group);
        Ok(())
    }

    pub(super) async fn delete_snapshot(&mut self, csi: &Csi, name: Name) -> Result<(), Status> {
        csi.call(requests::delete_snapshot(self.snapshot_id(name)))
            .await?;
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
        csi.call(requests::delete(self.id(name))).await?;
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

/// True if the growth of a mounted ext4 was refused, because this process can't do it.
fn must_be_unmounted(status: &Status) -> bool {
    let refused = status.code() == Code::FailedPrecondition;
    if !refused || machine::grows_mounted_ext4() {
        return false;
    }
    machine::not_run(
        "growing a mounted ext4",
        "this machine withholds CAP_SYS_RESOURCE",
    );
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

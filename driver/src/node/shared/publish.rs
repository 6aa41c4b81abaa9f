//! NodePublishVolume of a shared volume: a bind of what this node has staged, or of a readable pin.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hostloop_proto::csi;

use super::{Devices, capability, context};
use crate::csi::capability::RequestedCapability;
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::kernel::{BindFlags, LoopDevice};
use crate::node::publish::unmounted;
use crate::node::publish_decision::{self, NodePublish, Published};
use crate::node::{Error, Node, Requested, Result, fs_group, target_path};
use crate::storage::{Access, Stage, VolumeId};

impl Node {
    pub(in crate::node) fn publish_shared(
        &self,
        volume: VolumeId,
        req: &csi::NodePublishVolumeRequest,
        (staged_at, target): (&Path, PathBuf),
        requested: &RequestedCapability,
    ) -> Result<()> {
        let context = context(volume, &req.publish_context)?;
        let staged_at = target_path::place(staged_at)?;
        if target == staged_at || target == self.anchor_path(volume)? {
            return Err(target_path::wrong(&target, "is where the volume is staged"));
        }
        let capability = capability(volume, requested, &context)?;
        let publication = Requested {
            path: target,
            read_only: req.readonly || capability.mode.is_read_only(),
            capability,
        };
        let device = self.open_shared(volume, &context)?;
        let marker = self.own_marker()?;
        let minor = device.minor;
        if !Devices::is_there(self.pools.kernel(), |all| all.pin_by(&marker, minor))? {
            if publication.capability.access != Access::Block {
                return Err(Error::FailedPrecondition(format!(
                    "volume {volume} is not staged on this node: NodeStageVolume comes first"
                )));
            }
            // The staging of a raw block volume is its pin alone. This process may have given it back when
            // it started: nothing used it then.
            self.stage_shared(volume, &staged_at, requested, &req.publish_context)?;
        }
        let identity = VolumeIdentity::unrecorded(volume);
        let state = self.state(&identity, &[&publication.path, &staged_at])?;
        let stage = Stage {
            path: staged_at,
            capability: publication.capability.clone(),
            minor: Some(device.minor),
            read_only_loops: BTreeMap::new(),
            disk: None,
        };
        let decided = self.decide_shared(&state, &stage, &publication)?;
        match &publication.capability.access {
            Access::Block if decided == NodePublish::Done => Ok(()),
            Access::Block if publication.read_only => {
                self.publish_readable_pin(&identity, (&device, &marker), &publication.path)
            }
            Access::Block => self.bind_device(&identity, &device, &publication.path),
            Access::Mount { .. } => self.bind_mount(&state, &stage, decided, &publication),
        }
    }

    /// Decides what to do, given what is at the target and elsewhere on this node.
    fn decide_shared(
        &self,
        state: &VolumeState,
        stage: &Stage,
        requested: &Requested,
    ) -> Result<NodePublish> {
        let anchors = self.anchors()?;
        let here = self.published_at(state, &requested.path)?;
        let mut targets = state.targets(stage);
        targets.retain(|path| *path != requested.path && !path.starts_with(&anchors));
        let published = Published {
            here,
            elsewhere: !targets.is_empty(),
        };
        publish_decision::decide(
            &stage.capability,
            &requested.capability,
            requested.read_only,
            published,
        )
    }

    fn bind_mount(
        &self,
        state: &VolumeState,
        stage: &Stage,
        decided: NodePublish,
        requested: &Requested,
    ) -> Result<()> {
        let mount = state.mount_at(&stage.path);
        let is_staged = mount
            .zip(stage.minor)
            .is_some_and(|(mount, minor)| mount.is_on_loop(minor));
        if !is_staged {
            return Err(unmounted(state.identity().id(), &stage.path));
        }
        let read_only = self.bind_staged(stage, requested, decided, |made| {
            self.take_bind_back(state.identity(), &requested.path, made);
        })?;
        match &requested.capability.access {
            Access::Mount {
                group: Some(gid), ..
            } if !read_only => fs_group::chown_root(&requested.path, *gid),
            _ => Ok(()),
        }
    }

    fn bind_device(
        &self,
        identity: &VolumeIdentity,
        device: &LoopDevice,
        target: &Path,
    ) -> Result<()> {
        let made = target_path::make_file(target)?;
        let kernel = self.pools.kernel();
        let bound = kernel.bind(&device.path(), target, BindFlags::default());
        Ok(bound.inspect_err(|_| self.take_bind_back(identity, target, made))?)
    }

    /// Undoes a failed publication at its target.
    pub(super) fn take_bind_back(&self, identity: &VolumeIdentity, target: &Path, made: bool) {
        let cleared = self.clear(identity, target).and_then(|_| {
            if made {
                target_path::remove(target)
            } else {
                Ok(())
            }
        });
        if let Err(error) = cleared {
            tracing::warn!(
                target_path = %target.display(), %error,
                "cannot undo a failed publication"
            );
        }
    }
}

//! NodeStageVolume of a shared volume: pins the owner's device, and mounts it once more.

use std::collections::BTreeMap;
use std::path::Path;

use super::compare::{Mismatch, compare};
use super::dead_pins::CertainLook;
use super::{capability, context, not_yet, only};
use crate::csi::capability::{RequestedCapability, labels};
use crate::kernel::{self, FsType, LoopDevice, LoopInfo, MountSpec};
use crate::node::mount_stage::check_type;
use crate::node::stage::elsewhere;
use crate::node::unstage::foreign_mount;
use crate::node::{Error, Node, Result, fs_group, mount_options, target_path};
use crate::reach::context::PublishContext;
use crate::reach::decide::{UseFacts, may_use};
use crate::reach::markers::Marker;
use crate::storage::{Access, AccessMode, Capability, Settings, VolumeId};

/// A staging of a shared volume.
struct SharedStage<'a> {
    node: &'a Node,
    volume: VolumeId,
    context: &'a PublishContext,
    /// The staging path, as the mount table shows it.
    path: &'a Path,
    capability: &'a Capability,
    /// The owner's device. While it is open, its number goes to no other file.
    device: &'a LoopDevice,
    /// The marker of this node's pin.
    marker: &'a Marker,
}

impl Node {
    pub(in crate::node) fn stage_shared(
        &self,
        volume: VolumeId,
        path: &Path,
        requested: &RequestedCapability,
        of_call: &BTreeMap<String, String>,
    ) -> Result<()> {
        let context = context(volume, of_call)?;
        let path = target_path::place(path)?;
        if path == self.anchor_path(volume)? {
            return Err(target_path::wrong(
                &path,
                "is where the volume's owner has staged it",
            ));
        }
        let capability = capability(volume, requested, &context)?;
        refuse_labels(volume, &capability.access)?;
        if capability.access != Access::Block {
            target_path::directory(&path)?;
        }
        let device = self.open_shared(volume, &context)?;
        let marker = self.own_marker()?;
        // First the pin, then the look: of two nodes that do this at once, one sees the other at least.
        self.take_pin(&device, &marker)?;
        let staging = SharedStage {
            node: self,
            volume,
            context: &context,
            path: &path,
            capability: &capability,
            device: &device,
            marker: &marker,
        };
        staging
            .finish()
            .inspect_err(|_| self.drop_pin_after_failure(device.minor))
    }

    /// Opens the device that the owner says, and compares it while it is open.
    pub(super) fn open_shared(
        &self,
        volume: VolumeId,
        context: &PublishContext,
    ) -> Result<LoopDevice> {
        let kernel = self.pools.kernel();
        if kernel.boot_id()? != context.boot {
            return Err(not_yet(volume, context, &Mismatch::Boot));
        }
        let device = match kernel.loop_open(context.minor, context.image) {
            Err(kernel::Error::NotFound { .. }) => {
                let mismatch = match kernel.loop_info(context.minor)? {
                    None => Mismatch::Detached(context.minor),
                    Some(_) => Mismatch::Image(context.minor),
                };
                return Err(not_yet(volume, context, &mismatch));
            }
            opened => opened?,
        };
        let info = kernel.loop_info(context.minor)?;
        self.compare_shared(volume, context, info.as_ref())?;
        Ok(device)
    }

    fn compare_shared(
        &self,
        volume: VolumeId,
        context: &PublishContext,
        device: Option<&LoopInfo>,
    ) -> Result<()> {
        let kernel = self.pools.kernel();
        let boot = kernel.boot_id()?;
        let diskseq = kernel.loop_diskseq(context.minor)?;
        compare(context, &boot, device, diskseq, volume)
            .map_err(|mismatch| not_yet(volume, context, &mismatch))
    }
}

impl SharedStage<'_> {
    /// Runs the steps after the pin.
    fn finish(&self) -> Result<()> {
        let look = self.node.certain_look()?;
        self.check_pin(&look)?;
        self.refuse_others(&look)?;
        let info = look.devices.device(self.device.minor);
        self.node.compare_shared(self.volume, self.context, info)?;
        let mounted = match &self.capability.access {
            Access::Block => false,
            Access::Mount { fs, flags, group } => self.mount(*fs, flags, *group)?,
        };
        // A person may have unmounted the marker since: what is mounted now gets another pin.
        self.node
            .own_marker()
            .map(drop)
            .inspect_err(|_| self.unmount(mounted))
    }

    /// Checks that a look shows the pin of this call. One that does not may lack those of others, too.
    fn check_pin(&self, look: &CertainLook) -> Result<()> {
        let minor = self.device.minor;
        if look.devices.pin_by(self.marker, minor).is_some() {
            return Ok(());
        }
        Err(Error::NotYet(format!(
            "volume {}: the kernel does not show what this node has attached over /dev/loop{minor}, or \
             another process has detached it; this is tried again",
            self.volume
        )))
    }

    /// Checks that no other node uses a volume for one node.
    fn refuse_others(&self, look: &CertainLook) -> Result<()> {
        if self.context.many_nodes {
            return Ok(());
        }
        let minors = only(self.device.minor);
        let node = &self.node.config.node_id;
        let mut others = look.devices.holders(&minors);
        others.remove(node);
        // ControllerPublishVolume has decided the rest.
        let allowed = may_use(&UseFacts {
            volume: self.volume,
            mode: AccessMode::SingleNodeWriter,
            node,
            is_here: true,
            is_listed: true,
            published: Default::default(),
            holding: others.iter().map(String::as_str).collect(),
        });
        allowed.map_err(|refusal| Error::FailedPrecondition(refusal.to_string()))?;
        look.refuse_uncertain(self.volume, &minors)
    }

    /// Mounts the device at the staging path, unless it is mounted there. True if this call did.
    fn mount(&self, fs: FsType, flags: &[String], group: Option<u32>) -> Result<bool> {
        let settings = Settings {
            provisioning: self.context.provisioning,
            discard: self.context.discard,
            direct_io: false,
            read_ahead_kib: None,
        };
        let options = mount_options::options(fs, flags, &settings, false);
        if self.is_mounted(fs)? {
            return Ok(false);
        }
        self.refuse_elsewhere()?;
        // Read-write on all nodes: another mount of the filesystem that differs would be refused.
        let mounted = self.node.pools.kernel().mount(&MountSpec {
            device: &self.device.path(),
            target: self.path,
            fs,
            read_only: options.read_only,
            options: &options.words,
        });
        let checked = mounted
            .map_err(Error::from)
            .and_then(|()| self.check_mounted(options.read_only));
        let done = checked.and_then(|()| match group.filter(|_| !options.read_only) {
            Some(gid) => fs_group::chown_root(self.path, gid),
            None => Ok(()),
        });
        done.inspect_err(|_| self.unmount(true)).map(|()| true)
    }

    /// True if the device is mounted at the staging path.
    fn is_mounted(&self, fs: FsType) -> Result<bool> {
        let kernel = self.node.pools.kernel();
        let Some(mount) = kernel::topmost_mount(kernel, self.path)? else {
            return Ok(false);
        };
        if !mount.is_on_loop(self.device.minor) {
            return Err(foreign_mount(self.path, &mount));
        }
        check_type(&mount, fs).map(|()| true)
    }

    /// Checks that this node has the device mounted nowhere but at the owner's anchor.
    fn refuse_elsewhere(&self) -> Result<()> {
        let anchors = self.node.anchors()?;
        let mounts = kernel::mounts_of_loop(self.node.pools.kernel(), self.device.minor)?;
        let other = mounts
            .iter()
            .find(|mount| !mount.mount_point.starts_with(&anchors));
        other.map_or(Ok(()), |mount| Err(elsewhere(&mount.mount_point)))
    }

    /// Checks what the mount has led to: the filesystem of the device, writable unless it must not be.
    fn check_mounted(&self, read_only: bool) -> Result<()> {
        let mount = kernel::topmost_mount(self.node.pools.kernel(), self.path)?;
        let mount = mount.filter(|mount| mount.is_on_loop(self.device.minor));
        let mount = mount.ok_or_else(|| {
            target_path::wrong(self.path, "others changed the mounts here; try again")
        })?;
        if !read_only && (mount.read_only() || mount.fs_read_only()) {
            return Err(Error::FailedPrecondition(format!(
                "the filesystem of volume {} is read-only on all nodes, perhaps after an error: see \
                 its health on node {}",
                self.volume, self.context.owner
            )));
        }
        Ok(())
    }

    /// Undoes the mount of this call.
    fn unmount(&self, mounted: bool) {
        if !mounted {
            return;
        }
        let kernel = self.node.pools.kernel();
        let undone = kernel::topmost_mount(kernel, self.path).and_then(|mount| {
            match mount.filter(|mount| mount.is_on_loop(self.device.minor)) {
                Some(mount) => kernel.unmount_exactly(&mount),
                None => Ok(()),
            }
        });
        if let Err(error) = undone {
            tracing::warn!(volume = %self.volume, %error, "a failed staging is not completely undone");
        }
    }
}

/// All mounts of a filesystem have the labels of the first one, which is the owner's.
fn refuse_labels(volume: VolumeId, access: &Access) -> Result<()> {
    match labels(access).first() {
        None => Ok(()),
        Some(label) => Err(Error::FailedPrecondition(format!(
            "volume {volume} is shared by nodes, and its files get no label of SELinux by a mount \
             option: leave {} out",
            label.split('=').next().unwrap_or_default()
        ))),
    }
}

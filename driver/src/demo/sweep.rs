//! Putting everything back, however far the demo came: first as an orchestrator would, by calls;
//! then what calls can't undo, by hand.
//!
//! It works from what is there (the ledger of paths, the driver's lists, the mount table) and not
//! from what this process remembers: it serves `--cleanup` after a process that was killed, too.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use hostloop_proto::csi;
use hostloop_proto::csi::controller_client::ControllerClient;
use hostloop_proto::csi::group_controller_client::GroupControllerClient;
use hostloop_proto::csi::node_client::NodeClient;
use rustix::fs::OFlags;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::sys::file;

use super::child::{Driver, NODE_ID};
use super::error::{Error, Result};
use super::ledger::Place;
use super::remains::{loops_of, mounts_of, remove_empty_dirs};
use super::tree::Tree;
use super::world::World;

impl World {
    /// Undoes by calls whatever was done by calls, and says what could not be.
    pub(super) fn undo_by_calls(&mut self) -> Vec<String> {
        let mut failed = Vec::new();
        if let Err(e) = self.have_driver() {
            return vec![e.to_string()];
        }
        self.unpublish_all(&mut failed);
        self.unstage_all(&mut failed);
        self.delete_all(&mut failed);
        failed
    }

    /// Uses the driver that runs, or starts one.
    fn have_driver(&mut self) -> Result<()> {
        let alive = match &mut self.driver {
            Some(driver) => driver.ended()?.is_none(),
            None => false,
        };
        if !alive {
            self.driver = Some(match Driver::find(&self.tree) {
                Some(driver) => driver,
                None => Driver::start(&self.tree, &self.pool_word)?,
            });
            self.client.reconnect(&self.tree)?;
        }
        Ok(())
    }

    fn insist<T>(
        &mut self,
        failed: &mut Vec<String>,
        (rpc, about): (&'static str, impl Display),
        call: impl AsyncFn(Channel) -> std::result::Result<Response<T>, Status>,
    ) -> Option<T> {
        let made = self
            .client
            .insist(async |channel| Ok(call(channel).await?.into_inner()));
        let about = about.to_string();
        let code = made
            .answer
            .as_ref()
            .err()
            .map_or(tonic::Code::Ok, Status::code);
        self.narrator.call(rpc, &about, code, made.time);
        match made.answer {
            Ok(answer) => Some(answer),
            Err(status) => {
                failed.push(format!("{rpc} {about}: {code:?}: {}", status.message()));
                None
            }
        }
    }

    fn unpublish_all(&mut self, failed: &mut Vec<String>) {
        let mut left = Vec::new();
        for place in self.ledger.targets.clone().into_iter().rev() {
            let request = csi::NodeUnpublishVolumeRequest {
                volume_id: place.volume.clone(),
                target_path: place.path.display().to_string(),
            };
            let about = self.tree.below(&place.path);
            let done = self.insist(failed, ("NodeUnpublishVolume", about), async |channel| {
                NodeClient::new(channel)
                    .node_unpublish_volume(request.clone())
                    .await
            });
            if done.is_none() {
                left.push(place);
            }
        }
        self.ledger.targets = left;
    }

    fn unstage_all(&mut self, failed: &mut Vec<String>) {
        let mut left: Vec<Place> = Vec::new();
        for place in self.ledger.stagings.clone().into_iter().rev() {
            let request = csi::NodeUnstageVolumeRequest {
                volume_id: place.volume.clone(),
                staging_target_path: place.path.display().to_string(),
            };
            let about = self.tree.below(&place.path);
            let done = self.insist(failed, ("NodeUnstageVolume", about), async |channel| {
                NodeClient::new(channel)
                    .node_unstage_volume(request.clone())
                    .await
            });
            if done.is_none() {
                left.push(place);
            }
        }
        self.ledger.stagings = left;
    }

    fn delete_all(&mut self, failed: &mut Vec<String>) {
        let request = csi::ListSnapshotsRequest::default();
        let snapshots = self.insist(failed, ("ListSnapshots", ""), async |channel| {
            ControllerClient::new(channel)
                .list_snapshots(request.clone())
                .await
        });
        let snapshots: Vec<csi::Snapshot> = snapshots
            .map(|answer| {
                answer
                    .entries
                    .into_iter()
                    .filter_map(|e| e.snapshot)
                    .collect()
            })
            .unwrap_or_default();
        let groups: BTreeSet<&str> = snapshots
            .iter()
            .map(|s| s.group_snapshot_id.as_str())
            .filter(|id| !id.is_empty())
            .collect();
        for group in groups {
            let members = snapshots.iter().filter(|s| s.group_snapshot_id == group);
            let request = csi::DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: group.to_owned(),
                snapshot_ids: members.map(|s| s.snapshot_id.clone()).collect(),
                ..csi::DeleteVolumeGroupSnapshotRequest::default()
            };
            self.insist(
                failed,
                ("DeleteVolumeGroupSnapshot", group),
                async |channel| {
                    let mut client = GroupControllerClient::new(channel);
                    client.delete_volume_group_snapshot(request.clone()).await
                },
            );
        }
        for snapshot in snapshots.iter().filter(|s| s.group_snapshot_id.is_empty()) {
            let request = csi::DeleteSnapshotRequest {
                snapshot_id: snapshot.snapshot_id.clone(),
                ..csi::DeleteSnapshotRequest::default()
            };
            let about = &snapshot.snapshot_id;
            self.insist(failed, ("DeleteSnapshot", about), async |channel| {
                ControllerClient::new(channel)
                    .delete_snapshot(request.clone())
                    .await
            });
        }
        self.delete_volumes(failed);
    }

    fn delete_volumes(&mut self, failed: &mut Vec<String>) {
        let request = csi::ListVolumesRequest::default();
        let volumes = self.insist(failed, ("ListVolumes", ""), async |channel| {
            ControllerClient::new(channel)
                .list_volumes(request.clone())
                .await
        });
        for entry in volumes.map(|answer| answer.entries).unwrap_or_default() {
            let attached = entry
                .status
                .is_some_and(|s| !s.published_node_ids.is_empty());
            let id = entry.volume.map(|v| v.volume_id).unwrap_or_default();
            if attached {
                let request = csi::ControllerUnpublishVolumeRequest {
                    volume_id: id.clone(),
                    node_id: NODE_ID.to_owned(),
                    ..csi::ControllerUnpublishVolumeRequest::default()
                };
                self.insist(
                    failed,
                    ("ControllerUnpublishVolume", &id),
                    async |channel| {
                        let mut client = ControllerClient::new(channel);
                        client.controller_unpublish_volume(request.clone()).await
                    },
                );
            }
            let request = csi::DeleteVolumeRequest {
                volume_id: id.clone(),
                ..csi::DeleteVolumeRequest::default()
            };
            self.insist(failed, ("DeleteVolume", &id), async |channel| {
                ControllerClient::new(channel)
                    .delete_volume(request.clone())
                    .await
            });
        }
    }

    /// Stops the driver and gives back what outlives it by design: the pool's own mount and loop
    /// device, its image, and the scratch directories. Whatever else has to be undone is named:
    /// the driver left it behind.
    pub(super) fn undo_by_hand(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        if let Some(mut driver) = self.driver.take()
            && let Err(e) = driver.stop()
        {
            left.push(e.to_string());
        }
        if let Err(e) = self.unmount_all(&mut left) {
            // Nothing below may be touched while a volume may still be mounted there.
            left.push(e.to_string());
            return left;
        }
        let shelves = ["volumes", "snapshots", "groups", "incoming", "trash"];
        for dir in shelves.map(|shelf| self.tree.pool().join(shelf)) {
            left.extend(remove_entries(&dir));
        }
        for dir in [
            self.tree.state(),
            self.tree.pool(),
            self.tree.root().to_path_buf(),
        ] {
            remove_files(&dir);
        }
        remove_empty_dirs(self.tree.root());
        if self.ledger.made_root {
            // Fails if anything is left in it, which is then found by whoever looks for remains.
            let _ = fs::remove_dir(self.tree.root());
        }
        left
    }

    /// Unmounts and detaches what is left below the root.
    fn unmount_all(&self, left: &mut Vec<String>) -> Result<()> {
        let pools = self.tree.state().join("pools");
        for mount in mounts_of(&self.tree, &*self.kernel)? {
            if !mount.mount_point.starts_with(&pools) {
                let at = self.tree.below(&mount.mount_point);
                left.push(format!("{at} was still mounted"));
            }
            self.kernel.unmount(&mount.mount_point)?;
        }
        for device in loops_of(&self.tree, &*self.kernel)? {
            if device.backing_path != pool_image(&self.tree, &self.spec.name) {
                left.push(format!("/dev/loop{} was still attached", device.minor));
            }
            self.kernel.loop_release(&device)?;
        }
        Ok(())
    }
}

fn pool_image(tree: &Tree, pool: &str) -> String {
    tree.pool()
        .join(crate::pool::PoolSpec::image_name(pool))
        .display()
        .to_string()
}

/// Removes the entries of one of a pool's directories, and names them. They are the demo's own: it
/// made the directory they are in.
fn remove_entries(dir: &Path) -> Vec<String> {
    let Ok(open) = open_dir(dir) else {
        return Vec::new();
    };
    let names = file::list(open.as_fd()).unwrap_or_default();
    let name_of = |name: &String| format!("{} was still there", dir.join(name).display());
    let left = names.iter().map(name_of).collect();
    for name in &names {
        // What can't be removed is found by whoever looks for remains.
        let _ = file::remove_entry(open.as_fd(), name);
    }
    left
}

/// Removes the plain files in a directory.
fn remove_files(dir: &Path) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file())) {
        let _ = fs::remove_file(entry.path());
    }
}

fn open_dir(dir: &Path) -> Result<fs::File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = rustix::fs::open(dir, flags, rustix::fs::Mode::empty());
    Ok(open.map_err(|e| Error::io("open", dir)(e.into()))?.into())
}

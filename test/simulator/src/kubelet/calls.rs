//! The calls of a kubelet to a driver.

use std::path::{Path, PathBuf};

use hostloop_proto::csi;
use http::Method;
use serde_json::json;
use tokio::time::Instant;
use tonic::Status;

use super::{FIRST_DELAY, Kubelet, LAST_DELAY, Published, Staged};
use crate::cluster::DRIVER;
use crate::kubelet::wanted::Wanted;
use crate::kubelet::work::Work;
use crate::trace;
use crate::users::{path_in, send};

impl Kubelet {
    pub(super) async fn perform(self, work: Work) {
        let done = match &work {
            Work::Mount(wanted) => self.mount(wanted).await,
            Work::Expand(wanted) => self.expand(wanted).await,
            Work::Unpublish(key, published) => self.unpublish(key, published).await,
            Work::Unstage(handle, staged) => self.unstage(handle, staged).await,
        };
        let mut state = self.state.lock();
        state.busy.remove(work.handle());
        match done {
            Ok(()) => {
                trace::line(self.node, format!("{work} succeeded"));
                state.retries.remove(&work.key());
                state.starved.remove(work.handle());
                if let Work::Mount(wanted) = &work {
                    state.complaints.remove(&wanted.key());
                }
            }
            Err(status) => {
                trace::line(self.node, format!("{work} failed: {status}"));
                state.hungry(&work, &status);
                if let Work::Mount(wanted) = &work {
                    let why = format!("code = {:?} desc = {}", status.code(), status.message());
                    state.complaints.insert(wanted.key(), why);
                }
                let before = state.retries.get(&work.key()).map(|(_, delay)| *delay * 2);
                let delay = before.unwrap_or(FIRST_DELAY).min(LAST_DELAY);
                state
                    .retries
                    .insert(work.key(), (Instant::now() + delay, delay));
            }
        }
    }

    async fn mount(&self, wanted: &Wanted) -> Result<(), Status> {
        let staging = self.staging(wanted);
        let is_staged = self
            .state
            .lock()
            .staged
            .get(&wanted.handle)
            .is_some_and(|one| one.certain);
        if !wanted.inline && !is_staged {
            let secrets = self.content(wanted.secrets.stage.as_ref()).await?;
            make(&staging)?;
            let request = csi::NodeStageVolumeRequest {
                volume_id: wanted.handle.clone(),
                staging_target_path: text(&staging),
                volume_capability: Some(wanted.capability()),
                volume_context: wanted.attributes.clone(),
                secrets,
                ..Default::default()
            };
            let (mut client, call) = self.line.begin()?;
            let answer = call.answer(client.node_stage_volume(request)).await;
            // A volume that may be staged must be unstaged. Staging it again does no harm.
            let staged = match &answer {
                Ok(_) => Some(true),
                Err(status) if is_uncertain(status) => Some(false),
                Err(_) => None,
            };
            if let Some(certain) = staged {
                let staged = Staged {
                    path: staging.clone(),
                    certain,
                };
                self.state.lock().note_staged(&wanted.handle, staged);
            }
            answer?;
        }
        let secrets = self.content(wanted.secrets.publish.as_ref()).await?;
        let target = self.target(wanted);
        make(target.parent().unwrap_or(&target))?;
        let request = csi::NodePublishVolumeRequest {
            volume_id: wanted.handle.clone(),
            staging_target_path: if wanted.inline {
                String::new()
            } else {
                text(&staging)
            },
            target_path: text(&target),
            volume_capability: Some(wanted.capability()),
            readonly: wanted.read_only,
            volume_context: wanted.attributes.clone(),
            secrets,
            ..Default::default()
        };
        let (mut client, call) = self.line.begin()?;
        let answer = call.answer(client.node_publish_volume(request)).await;
        // A volume that may be published must be unpublished.
        let certain = answer.is_ok();
        if certain || answer.as_ref().is_err_and(is_uncertain) {
            let published = Published {
                handle: wanted.handle.clone(),
                target,
                certain,
            };
            self.state.lock().published.insert(wanted.key(), published);
        }
        answer.map(drop)
    }

    async fn expand(&self, wanted: &Wanted) -> Result<(), Status> {
        let size = wanted.grows_to.unwrap_or_default();
        let secrets = self.content(wanted.secrets.expand.as_ref()).await?;
        let request = csi::NodeExpandVolumeRequest {
            volume_id: wanted.handle.clone(),
            volume_path: text(&self.target(wanted)),
            staging_target_path: text(&self.staging(wanted)),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: size.cast_signed(),
                limit_bytes: 0,
            }),
            volume_capability: Some(wanted.capability()),
            secrets,
        };
        let (mut client, call) = self.line.begin()?;
        call.answer(client.node_expand_volume(request)).await?;
        let status = json!({"status": {
            "capacity": {"storage": size.to_string()},
            "allocatedResourceStatuses": null, "conditions": null,
        }});
        let claim = path_in(
            &wanted.pod.namespace,
            "persistentvolumeclaims",
            &wanted.claim,
        );
        let at = format!("{claim}/status");
        let saved = send(&self.client, Method::PATCH, &at, &status).await;
        saved
            .map(drop)
            .map_err(|refused| Status::unavailable(refused.message))
    }

    async fn unpublish(&self, key: &(String, String), published: &Published) -> Result<(), Status> {
        self.write_last(key, published);
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: published.handle.clone(),
            target_path: text(&published.target),
        };
        let (mut client, call) = self.line.begin()?;
        call.answer(client.node_unpublish_volume(request)).await?;
        if published.target.exists() {
            return Err(Status::internal("the target is still there"));
        }
        if let Some(parent) = published.target.parent() {
            let _ = std::fs::remove_dir(parent);
        }
        self.state.lock().published.remove(key);
        Ok(())
    }

    async fn unstage(&self, handle: &str, staged: &Staged) -> Result<(), Status> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: handle.to_owned(),
            staging_target_path: text(&staged.path),
        };
        let (mut client, call) = self.line.begin()?;
        call.answer(client.node_unstage_volume(request)).await?;
        let _ = std::fs::remove_dir(&staged.path);
        self.state.lock().staged.remove(handle);
        Ok(())
    }

    pub(super) fn staging(&self, wanted: &Wanted) -> PathBuf {
        let plugins = self.dir.join("plugins/kubernetes.io/csi");
        if wanted.block {
            plugins.join("volumeDevices/staging").join(&wanted.name)
        } else {
            plugins
                .join(DRIVER)
                .join(&wanted.handle)
                .join("globalmount")
        }
    }

    pub(super) fn target(&self, wanted: &Wanted) -> PathBuf {
        let uid = &wanted.pod.uid;
        if wanted.block {
            let plugins = self
                .dir
                .join("plugins/kubernetes.io/csi/volumeDevices/publish");
            return plugins.join(&wanted.name).join(uid);
        }
        let volumes = self
            .dir
            .join("pods")
            .join(uid)
            .join("volumes/kubernetes.io~csi");
        volumes.join(&wanted.name).join("mount")
    }
}

/// True if the call may still have an effect.
fn is_uncertain(status: &Status) -> bool {
    use tonic::Code::{Aborted, Cancelled, DeadlineExceeded, Unavailable};
    matches!(
        status.code(),
        Aborted | Cancelled | DeadlineExceeded | Unavailable
    )
}

fn make(dir: &Path) -> Result<(), Status> {
    std::fs::create_dir_all(dir).map_err(|error| Status::internal(format!("mkdir: {error}")))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

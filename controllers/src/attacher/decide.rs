//! Decides what to do with an attachment, and with the finalizer of a PV.

use std::sync::Arc;

use hostloop_proto::csi::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference,
};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::attachment::{expected_name, is_expected_name};
use crate::api::constants::NODE_ID;
use crate::api::node::registered;
use crate::api::pv::{self, AccessModesError};
use crate::cache::Change;
use crate::client::Resource;
use crate::controller::owner::Ownership;

/// Settings that stay constant while the process runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub driver: String,
    /// The finalizer on the driver's PVs and attachments.
    pub finalizer: String,
    /// The driver has the capability PUBLISH_UNPUBLISH_VOLUME.
    pub attaches: bool,
    /// The driver has the capability PUBLISH_READONLY.
    pub read_only: bool,
    /// The driver has the capability SINGLE_NODE_MULTI_WRITER.
    pub multi_writer: bool,
    /// The filesystem type of volumes that name none.
    pub default_fstype: String,
}

/// The objects that a decision depends on.
#[derive(Clone, Debug)]
pub struct Facts {
    pub attachment: Arc<VolumeAttachment>,
    /// The PV that the attachment names, if it exists.
    pub volume: Option<Arc<PersistentVolume>>,
    /// The CSINode of the attachment's node, if it exists.
    pub csi_node: Option<Arc<CSINode>>,
    /// True if the driver's list contradicts the attachment's status: call the driver in any case.
    pub forced: bool,
}

/// What to do for an attachment.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Nothing,
    /// Set the status to attached. The driver needs no call.
    MarkAttached,
    /// Call ControllerPublishVolume.
    Attach(Box<Attach>),
    /// Call ControllerUnpublishVolume.
    Detach(Box<Detach>),
}

/// The calls and writes that attach a volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Attach {
    /// The request, without secrets.
    pub request: ControllerPublishVolumeRequest,
    pub secret: Option<SecretReference>,
    /// True if the PV lacks the finalizer.
    pub needs_volume_finalizer: bool,
    /// A patch of the attachment to write before the call, if needed.
    pub prepare: Option<Value>,
}

/// The call that detaches a volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Detach {
    /// The request, without secrets.
    pub request: ControllerUnpublishVolumeRequest,
    pub secret: Option<SecretReference>,
}

/// Why an attachment can't be handled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachmentError {
    #[error("spec.source has neither inlineVolumeSpec nor persistentVolumeName")]
    NoSource,
    #[error("spec.source has both inlineVolumeSpec and persistentVolumeName")]
    TwoSources,
    #[error("there is no PersistentVolume {0}")]
    NoVolume(String),
    /// The PV was deleted, and another one has its name.
    #[error(
        "PersistentVolume {volume} now has the volume {handle}, but the attachment was made for \
         another one: its pod must be created again"
    )]
    Replaced { volume: String, handle: String },
    #[error(
        "PersistentVolume {0} is marked for deletion, so no pod can start with it: clone its claim \
         to keep the data, then delete the claim and its pods"
    )]
    Deleting(String),
    #[error("{0} is not a CSI volume")]
    NotCsi(String),
    #[error("{volume} is a volume of CSI driver {driver}")]
    OtherDriver { volume: String, driver: String },
    #[error("{volume}: {source}")]
    AccessModes {
        volume: String,
        #[source]
        source: AccessModesError,
    },
    #[error("there is no CSINode {0}")]
    NoNode(String),
    /// The CSINode does not list the driver: it is absent, or has not registered yet.
    #[error("CSINode {node} does not contain driver {driver}")]
    NotOnNode { node: String, driver: String },
}

/// The volume of an attachment.
pub struct AttachmentSource<'a> {
    /// The volume's name in messages.
    pub name: String,
    pub spec: &'a PersistentVolumeSpec,
    pub csi: &'a CSIPersistentVolumeSource,
}

impl Settings {
    /// Decides what to do with an attachment. Another driver's attachment needs nothing.
    pub fn decide(&self, facts: &Facts) -> Result<Step, AttachmentError> {
        let attachment = &facts.attachment;
        if attachment.spec.attacher != self.driver {
            return Ok(Step::Nothing);
        }
        let attached = is_attached(attachment);
        if !self.attaches {
            return Ok(if attached {
                Step::Nothing
            } else {
                Step::MarkAttached
            });
        }
        if attachment.is_deleting() {
            if !facts.forced && !attachment.has_finalizer(&self.finalizer) {
                return Ok(Step::Nothing);
            }
            return Ok(Step::Detach(Box::new(self.detach(facts)?)));
        }
        if attached && !facts.forced {
            return Ok(Step::Nothing);
        }
        Ok(Step::Attach(Box::new(self.attach(facts)?)))
    }

    fn attach(&self, facts: &Facts) -> Result<Attach, AttachmentError> {
        let (attachment, volume) = (&facts.attachment, facts.volume.as_deref());
        let source = self.source(attachment, volume)?;
        let named = attachment.spec.source.persistent_volume_name.as_ref();
        let volume = named.and(volume);
        if let Some(volume) = volume.filter(|volume| volume.is_deleting()) {
            return Err(AttachmentError::Deleting(volume.name_any()));
        }
        let capability = pv::capability(source.spec, self.multi_writer, &self.default_fstype)
            .map_err(|error| AttachmentError::AccessModes {
                volume: source.name.clone(),
                source: error,
            })?;
        let node = &attachment.spec.node_name;
        let node_id = self.node_id(node, facts.csi_node.as_deref())?;
        let request = ControllerPublishVolumeRequest {
            volume_id: source.csi.volume_handle.clone(),
            node_id: node_id.to_owned(),
            volume_capability: Some(capability),
            readonly: self.read_only && source.csi.read_only.unwrap_or(false),
            volume_context: source.csi.volume_attributes.clone().unwrap_or_default(),
            secrets: Default::default(),
        };
        Ok(Attach {
            request,
            secret: source.csi.controller_publish_secret_ref.clone(),
            needs_volume_finalizer: volume
                .is_some_and(|volume| !volume.has_finalizer(&self.finalizer)),
            prepare: self.prepare(attachment, node_id),
        })
    }

    fn detach(&self, facts: &Facts) -> Result<Detach, AttachmentError> {
        let source = self.source(&facts.attachment, facts.volume.as_deref())?;
        let node_id = self.node_id_of(&facts.attachment, facts.csi_node.as_deref())?;
        let request = ControllerUnpublishVolumeRequest {
            volume_id: source.csi.volume_handle.clone(),
            node_id: node_id.to_owned(),
            secrets: Default::default(),
        };
        Ok(Detach {
            request,
            secret: source.csi.controller_publish_secret_ref.clone(),
        })
    }

    /// Returns the volume of an attachment.
    pub fn source<'a>(
        &self,
        attachment: &'a VolumeAttachment,
        volume: Option<&'a PersistentVolume>,
    ) -> Result<AttachmentSource<'a>, AttachmentError> {
        let source = &attachment.spec.source;
        let (name, spec) = match (&source.persistent_volume_name, &source.inline_volume_spec) {
            (Some(_), Some(_)) => return Err(AttachmentError::TwoSources),
            (None, None) => return Err(AttachmentError::NoSource),
            (None, Some(spec)) => ("the inline volume".to_owned(), Some(spec)),
            (Some(name), None) => {
                let volume = volume.ok_or_else(|| AttachmentError::NoVolume(name.clone()))?;
                (format!("PersistentVolume {name}"), volume.spec.as_ref())
            }
        };
        let found = spec.and_then(|spec| Some((spec, spec.csi.as_ref()?)));
        let (spec, csi) = found.ok_or_else(|| AttachmentError::NotCsi(name.clone()))?;
        if csi.driver != self.driver {
            return Err(AttachmentError::OtherDriver {
                volume: name,
                driver: csi.driver.clone(),
            });
        }
        let (handle, node) = (&csi.volume_handle, &attachment.spec.node_name);
        let own = attachment.name_any();
        if let Some(volume) = volume
            && is_expected_name(&own)
            && own != expected_name(handle, &self.driver, node)
        {
            return Err(AttachmentError::Replaced {
                volume: volume.name_any(),
                handle: handle.clone(),
            });
        }
        Ok(AttachmentSource { name, spec, csi })
    }

    /// Returns the driver's ID of a node from its CSINode.
    pub fn node_id<'a>(
        &self,
        node: &str,
        csi_node: Option<&'a CSINode>,
    ) -> Result<&'a str, AttachmentError> {
        let csi_node = csi_node.ok_or_else(|| AttachmentError::NoNode(node.to_owned()))?;
        match registered(csi_node, &self.driver) {
            Some(driver) => Ok(&driver.node_id),
            None => Err(AttachmentError::NotOnNode {
                node: node.to_owned(),
                driver: self.driver.clone(),
            }),
        }
    }

    /// Returns the node ID from the CSINode, or else from the attachment's annotation. A node that
    /// is gone or shut down must not prevent detaching.
    pub fn node_id_of<'a>(
        &self,
        attachment: &'a VolumeAttachment,
        csi_node: Option<&'a CSINode>,
    ) -> Result<&'a str, AttachmentError> {
        self.node_id(&attachment.spec.node_name, csi_node)
            .or_else(|trouble| {
                let remembered = attachment.annotations().get(NODE_ID);
                let remembered = remembered.map(String::as_str);
                // For the driver, an empty ID means all nodes.
                remembered.filter(|id| !id.is_empty()).ok_or(trouble)
            })
    }

    /// Adds the finalizer and the node ID where they are missing. The patch replaces the whole list
    /// of finalizers, so it is bound to the version that was read.
    fn prepare(&self, attachment: &VolumeAttachment, node_id: &str) -> Option<Value> {
        let mut metadata = json!({});
        if !attachment.has_finalizer(&self.finalizer) {
            let mut finalizers = attachment.finalizers().to_vec();
            finalizers.push(self.finalizer.clone());
            metadata["finalizers"] = json!(finalizers);
        }
        if attachment.annotations().get(NODE_ID).map(String::as_str) != Some(node_id) {
            metadata["annotations"] = json!({ NODE_ID: node_id });
        }
        (metadata != json!({})).then(|| bound(attachment, metadata))
    }

    fn is_registered(&self, node: &CSINode) -> bool {
        registered(node, &self.driver).is_some()
    }

    /// The name of a CSINode on which the driver has registered just now.
    pub fn newly_registered(&self, change: &Change<CSINode>) -> Option<String> {
        let (old, new) = change.both()?;
        let is_new = self.is_registered(new) && !self.is_registered(old);
        is_new.then(|| new.name_any())
    }

    /// True if a PV is being deleted and has the finalizer.
    pub fn keeps(&self, volume: &PersistentVolume) -> bool {
        volume.is_deleting() && volume.has_finalizer(&self.finalizer)
    }

    /// True if a change of an attachment needs work. The attacher's own writes do not: they would
    /// bypass the backoff.
    pub fn asks(&self, old: &VolumeAttachment, new: &VolumeAttachment) -> bool {
        self.essence(old) != self.essence(new)
            || old.has_finalizer(&self.finalizer) && !new.has_finalizer(&self.finalizer)
    }

    fn essence(&self, attachment: &VolumeAttachment) -> VolumeAttachment {
        let mut attachment = attachment.clone();
        let metadata = &mut attachment.metadata;
        metadata.resource_version = None;
        metadata.managed_fields = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(NODE_ID);
        }
        let annotations = metadata.annotations.take();
        metadata.annotations = annotations.filter(|annotations| !annotations.is_empty());
        let mut finalizers = metadata.finalizers.take().unwrap_or_default();
        finalizers.retain(|finalizer| *finalizer != self.finalizer);
        metadata.finalizers = Some(finalizers);
        let mut status = attachment.status.take().unwrap_or_default();
        status.attach_error = None;
        status.detach_error = None;
        attachment.status = Some(status);
        attachment
    }
}

/// True if a process is responsible for an attachment: as the owner of its volume if that is shared, by
/// its label if it has one and its volume is unknown, and else as the process of its node.
pub(super) fn serves(
    owner: Option<Ownership>,
    is_labelled: Option<bool>,
    is_to_its_node: bool,
) -> bool {
    match (owner, is_labelled) {
        (Some(owner), _) => owner == Ownership::Local,
        (None, Some(is_labelled)) => is_labelled,
        (None, None) => is_to_its_node,
    }
}

/// True if the attachment's status says that it is attached.
pub fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment
        .status
        .as_ref()
        .is_some_and(|status| status.attached)
}

/// A metadata patch that applies only to this version of this object.
fn bound(attachment: &VolumeAttachment, mut metadata: Value) -> Value {
    metadata["uid"] = json!(attachment.uid());
    metadata["resourceVersion"] = json!(attachment.resource_version());
    json!({ "metadata": metadata })
}

#[cfg(test)]
mod tests;

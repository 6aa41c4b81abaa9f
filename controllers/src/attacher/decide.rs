//! What is to be done about an attachment, and about a volume's finalizer.

use hostloop_proto::csi::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference,
};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::api::pv::{self, AccessModesError};

/// The annotation that keeps the driver's ID of the node, for when its CSINode is gone.
pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// What does not change while the process runs.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The driver's name.
    pub driver: String,
    /// The finalizer of its volumes and attachments.
    pub finalizer: String,
    /// It attaches at all: PUBLISH_UNPUBLISH_VOLUME.
    pub attaches: bool,
    /// PUBLISH_READONLY.
    pub read_only: bool,
    /// SINGLE_NODE_MULTI_WRITER.
    pub multi_writer: bool,
    /// The filesystem of volumes that name none.
    pub default_fstype: String,
}

/// What there is.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The attachment.
    pub attachment: &'a VolumeAttachment,
    /// The volume its source names, if there is one of this name.
    pub volume: Option<&'a PersistentVolume>,
    /// The CSINode of its node, if there is one.
    pub csi_node: Option<&'a CSINode>,
    /// The driver says otherwise than its status: act whatever that is.
    pub forced: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Say that it is attached: there is nothing else to attaching.
    MarkAttached,
    /// Attach it.
    Attach(Box<Attach>),
    /// Detach it.
    Detach(Box<Detach>),
}

/// How to attach.
#[derive(Clone, Debug, PartialEq)]
pub struct Attach {
    /// The call, without secrets.
    pub request: ControllerPublishVolumeRequest,
    /// Where those are.
    pub secret: Option<SecretReference>,
    /// The volume has no finalizer yet.
    pub needs_volume_finalizer: bool,
    /// What the attachment needs before, if anything.
    pub prepare: Option<Value>,
}

/// How to detach.
#[derive(Clone, Debug, PartialEq)]
pub struct Detach {
    /// The call, without secrets.
    pub request: ControllerUnpublishVolumeRequest,
    /// Where those are.
    pub secret: Option<SecretReference>,
}

/// Why nothing can be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Its source says nothing.
    #[error("its source has neither inlineVolumeSpec nor persistentVolumeName")]
    NoSource,
    /// Its source says two things.
    #[error("its source has both inlineVolumeSpec and persistentVolumeName")]
    TwoSources,
    /// The volume is not there.
    #[error("there is no PersistentVolume {0}")]
    NoVolume(String),
    /// The volume is about to be deleted.
    #[error("PersistentVolume {0} is marked for deletion")]
    Deleting(String),
    /// It is not a CSI volume.
    #[error("{0} is not a CSI volume")]
    NotCsi(String),
    /// It is another driver's volume.
    #[error("{volume} is a volume of CSI driver {driver}")]
    OtherDriver {
        /// The volume.
        volume: String,
        /// Whose it is.
        driver: String,
    },
    /// Its access modes fit no call.
    #[error("{volume}: {source}")]
    AccessModes {
        /// The volume.
        volume: String,
        /// Why.
        #[source]
        source: AccessModesError,
    },
    /// The node is not known.
    #[error("there is no CSINode {0}")]
    NoNode(String),
    /// The driver is not on the node, or has not said so yet.
    #[error("CSINode {node} does not contain driver {driver}")]
    NotOnNode {
        /// The node.
        node: String,
        /// The driver.
        driver: String,
    },
}

/// The volume of an attachment.
pub struct Source<'a> {
    /// How messages call it.
    pub name: String,
    /// Its specification.
    pub spec: &'a PersistentVolumeSpec,
    /// The CSI part of that.
    pub csi: &'a CSIPersistentVolumeSource,
}

impl Rules {
    /// What is to be done about an attachment of this driver.
    pub fn decide(&self, seen: Seen<'_>) -> Result<Action, Trouble> {
        let attachment = seen.attachment;
        if attachment.spec.attacher != self.driver {
            return Ok(Action::Nothing);
        }
        let attached = is_attached(attachment);
        if !self.attaches {
            return Ok(match attached {
                true => Action::Nothing,
                false => Action::MarkAttached,
            });
        }
        if attachment.metadata.deletion_timestamp.is_some() {
            if !seen.forced && !self.has_finalizer(attachment.finalizers()) {
                return Ok(Action::Nothing);
            }
            return Ok(Action::Detach(Box::new(self.detach(seen)?)));
        }
        if attached && !seen.forced {
            return Ok(Action::Nothing);
        }
        Ok(Action::Attach(Box::new(self.attach(seen)?)))
    }

    fn attach(&self, seen: Seen<'_>) -> Result<Attach, Trouble> {
        let attachment = seen.attachment;
        let source = self.source(attachment, seen.volume)?;
        let named = attachment.spec.source.persistent_volume_name.as_ref();
        let volume = named.and(seen.volume);
        if let Some(volume) = volume
            && volume.metadata.deletion_timestamp.is_some()
        {
            return Err(Trouble::Deleting(volume.name_any()));
        }
        let capability = pv::capability(source.spec, self.multi_writer, &self.default_fstype)
            .map_err(|error| Trouble::AccessModes {
                volume: source.name.clone(),
                source: error,
            })?;
        let node = &attachment.spec.node_name;
        let node_id = self.node_id(node, seen.csi_node)?;
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
                .is_some_and(|volume| !self.has_finalizer(volume.finalizers())),
            prepare: self.prepare(attachment, node_id),
        })
    }

    fn detach(&self, seen: Seen<'_>) -> Result<Detach, Trouble> {
        let source = self.source(seen.attachment, seen.volume)?;
        let node_id = self.node_id_of(seen.attachment, seen.csi_node)?;
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

    /// The volume an attachment is of.
    pub fn source<'a>(
        &self,
        attachment: &'a VolumeAttachment,
        volume: Option<&'a PersistentVolume>,
    ) -> Result<Source<'a>, Trouble> {
        let source = &attachment.spec.source;
        let (name, spec) = match (&source.persistent_volume_name, &source.inline_volume_spec) {
            (Some(_), Some(_)) => return Err(Trouble::TwoSources),
            (None, None) => return Err(Trouble::NoSource),
            (None, Some(spec)) => ("the inline volume".to_owned(), Some(spec)),
            (Some(name), None) => {
                let volume = volume.ok_or_else(|| Trouble::NoVolume(name.clone()))?;
                (format!("PersistentVolume {name}"), volume.spec.as_ref())
            }
        };
        let found = spec.and_then(|spec| Some((spec, spec.csi.as_ref()?)));
        let (spec, csi) = found.ok_or_else(|| Trouble::NotCsi(name.clone()))?;
        if csi.driver != self.driver {
            return Err(Trouble::OtherDriver {
                volume: name,
                driver: csi.driver.clone(),
            });
        }
        Ok(Source { name, spec, csi })
    }

    /// The driver's ID of a node, as its CSINode says.
    pub fn node_id<'a>(
        &self,
        node: &str,
        csi_node: Option<&'a CSINode>,
    ) -> Result<&'a str, Trouble> {
        let csi_node = csi_node.ok_or_else(|| Trouble::NoNode(node.to_owned()))?;
        let driver = csi_node
            .spec
            .drivers
            .iter()
            .find(|driver| driver.name == self.driver);
        match driver {
            Some(driver) => Ok(&driver.node_id),
            None => Err(Trouble::NotOnNode {
                node: node.to_owned(),
                driver: self.driver.clone(),
            }),
        }
    }

    /// The same, or what the attachment remembers: a node that is gone, or is shut down, must not
    /// keep a volume from being detached.
    pub fn node_id_of<'a>(
        &self,
        attachment: &'a VolumeAttachment,
        csi_node: Option<&'a CSINode>,
    ) -> Result<&'a str, Trouble> {
        self.node_id(&attachment.spec.node_name, csi_node)
            .or_else(|trouble| {
                let remembered = attachment.annotations().get(NODE_ID);
                remembered.map(String::as_str).ok_or(trouble)
            })
    }

    /// The finalizer and the node's ID, where they are not there yet. The list is written as a
    /// whole, so it is bound to the version it was read from.
    fn prepare(&self, attachment: &VolumeAttachment, node_id: &str) -> Option<Value> {
        let mut metadata = Map::new();
        if !self.has_finalizer(attachment.finalizers()) {
            let mut finalizers = attachment.finalizers().to_vec();
            finalizers.push(self.finalizer.clone());
            metadata.insert("finalizers".to_owned(), json!(finalizers));
        }
        if attachment.annotations().get(NODE_ID).map(String::as_str) != Some(node_id) {
            metadata.insert("annotations".to_owned(), json!({ NODE_ID: node_id }));
        }
        if metadata.is_empty() {
            return None;
        }
        Some(bound(attachment, metadata))
    }

    /// Takes the finalizer off an attachment; nothing if it has none.
    pub fn release(&self, attachment: &VolumeAttachment) -> Option<Value> {
        if !self.has_finalizer(attachment.finalizers()) {
            return None;
        }
        let rest: Vec<&String> = attachment
            .finalizers()
            .iter()
            .filter(|finalizer| **finalizer != self.finalizer)
            .collect();
        let mut metadata = Map::new();
        metadata.insert("finalizers".to_owned(), json!(rest));
        Some(bound(attachment, metadata))
    }

    /// Whether the driver's finalizer is among these.
    pub fn has_finalizer(&self, finalizers: &[String]) -> bool {
        finalizers.contains(&self.finalizer)
    }

    /// Whether the finalizer keeps a volume that is being deleted.
    pub fn keeps(&self, volume: &PersistentVolume) -> bool {
        volume.metadata.deletion_timestamp.is_some() && self.has_finalizer(volume.finalizers())
    }

    /// Puts the finalizer on a volume; nothing if it has it.
    pub fn protect(&self, volume: &PersistentVolume) -> Option<Value> {
        let present = volume.finalizers();
        if self.has_finalizer(present) {
            return None;
        }
        Some(if present.is_empty() {
            let version = volume.resource_version().unwrap_or_default();
            json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": version},
                {"op": "add", "path": "/metadata/finalizers", "value": [self.finalizer]},
            ])
        } else {
            json!([
                {"op": "test", "path": "/metadata/finalizers", "value": present},
                {"op": "add", "path": "/metadata/finalizers/-", "value": self.finalizer},
            ])
        })
    }

    /// Takes the finalizer off a volume that is to go and that no attachment names.
    pub fn unprotect(&self, volume: &PersistentVolume, named: bool) -> Option<Value> {
        if volume.metadata.deletion_timestamp.is_none() || named {
            return None;
        }
        let mut finalizers = volume.finalizers().iter();
        let place = finalizers.position(|finalizer| *finalizer == self.finalizer)?;
        let path = format!("/metadata/finalizers/{place}");
        Some(json!([
            {"op": "test", "path": path, "value": self.finalizer},
            {"op": "remove", "path": path},
        ]))
    }

    /// Whether a change of an attachment asks for work. What this loop itself wrote at its last
    /// try does not: it would do away with the backoff.
    pub fn asks(&self, old: &VolumeAttachment, new: &VolumeAttachment) -> bool {
        self.essence(old) != self.essence(new)
            || self.has_finalizer(old.finalizers()) && !self.has_finalizer(new.finalizers())
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

/// Whether its status says so.
pub fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment
        .status
        .as_ref()
        .is_some_and(|status| status.attached)
}

/// How an attachment is called by who makes it for pods, and awaited by kubelet.
pub fn expected_name(handle: &str, driver: &str, node: &str) -> String {
    let mut hash = Sha256::new();
    for part in [handle, driver, node] {
        hash.update(part.as_bytes());
    }
    let digits: String = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("csi-{digits}")
}

/// A patch of metadata that holds for this version of this object only.
fn bound(attachment: &VolumeAttachment, mut metadata: Map<String, Value>) -> Value {
    metadata.insert("uid".to_owned(), json!(attachment.uid()));
    let version = json!(attachment.resource_version());
    metadata.insert("resourceVersion".to_owned(), version);
    json!({ "metadata": metadata })
}

#[cfg(test)]
mod tests;

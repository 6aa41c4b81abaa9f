//! What goes over hostloop's sockets: the Container Storage Interface 1.13,
//! the kubelet's plugin registration and Kubernetes' service of changed
//! blocks, as messages, clients and servers.
//!
//! Fields that are marked as secret are shown by `Debug` as the number of
//! their entries only, so that a request can be logged as it is. Maps are
//! ordered, so that equal messages print and encode alike.

/// The Container Storage Interface.
pub mod csi {
    /// Package `csi.v1`, at version 1.13.0.
    #[allow(clippy::all, reason = "generated code")]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
        include!(concat!(env!("OUT_DIR"), "/redaction.rs"));
    }
    pub use v1::*;
}

pub mod calls;
pub mod manifest;
pub mod status_details;

/// How the kubelet learns of a plugin on its node.
#[allow(clippy::all, reason = "generated code")]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// How backup tools learn which blocks of a snapshot changed.
#[allow(clippy::all, reason = "generated code")]
pub mod snapshot_metadata {
    tonic::include_proto!("snapshotmetadata");
    /// The answers are CSI's.
    pub use crate::csi::v1::{
        BlockMetadata, BlockMetadataType, GetMetadataAllocatedResponse, GetMetadataDeltaResponse,
    };
    include!(concat!(env!("OUT_DIR"), "/snapshotmetadata_redaction.rs"));
}

/// The protocols' descriptors with everything they import: an encoded
/// `google.protobuf.FileDescriptorSet`, custom options included.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Every field that carries secrets, as the full name of its message and its
/// own name: those with the option `csi_secret`. Never log their content.
pub const SECRET_FIELDS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/secret_fields.rs"));

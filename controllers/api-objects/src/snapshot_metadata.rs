//! The kind of `cbt.storage.k8s.io/v1beta1`: where backup tools find a driver's changed blocks.

use k8s_openapi::ByteString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The service of a driver's changed blocks. The object has the driver's name.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "cbt.storage.k8s.io",
    version = "v1beta1",
    kind = "SnapshotMetadataService",
    derive = "PartialEq",
    shortname = "sms"
)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotMetadataServiceSpec {
    /// The service's address, `host:port`. Its certificate is for this host.
    pub address: String,
    /// The audience that tokens of callers must have.
    pub audience: String,
    /// The certificates that the service's own is signed with, as PEM.
    #[schemars(with = "String")]
    pub ca_cert: ByteString,
}

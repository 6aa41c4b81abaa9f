//! A CSI client for tests: one [`Csi::call`] for every unary RPC, chosen by the request's type.

use std::collections::BTreeMap;
use std::path::Path;

use hostloop_memory_driver::Rpc;
use hostloop_proto::csi;
use hostloop_proto::csi::controller_client::ControllerClient;
use hostloop_proto::csi::group_controller_client::GroupControllerClient;
use hostloop_proto::csi::identity_client::IdentityClient;
use hostloop_proto::csi::node_client::NodeClient;
use hostloop_proto::csi::snapshot_metadata_client::SnapshotMetadataClient;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::PATIENCE;
use crate::machine::text;

/// All of a driver's services over one connection.
#[derive(Clone)]
pub struct Csi {
    channel: Channel,
}

/// A request type, which determines its RPC.
pub trait Call: std::fmt::Debug {
    /// The type of the response.
    type Answer;
    /// The RPC's name.
    const NAME: &'static str;
    /// Sends the request.
    fn send(self, channel: Channel) -> impl Future<Output = Result<Self::Answer, Status>> + Send;
}

macro_rules! calls {
    ($($client:ident { $($method:ident: $request:ident),* $(,)? })*) => {$($(
        impl Call for csi::$request {
            type Answer = <csi::$request as Rpc>::Response;
            const NAME: &'static str = <csi::$request as Rpc>::METHOD;
            async fn send(self, channel: Channel) -> Result<Self::Answer, Status> {
                let mut client = $client::new(channel);
                client.$method(self).await.map(tonic::Response::into_inner)
            }
        }
    )*)*};
}

calls! {
    IdentityClient {
        get_plugin_info: GetPluginInfoRequest,
        get_plugin_capabilities: GetPluginCapabilitiesRequest,
        probe: ProbeRequest,
    }
    ControllerClient {
        create_volume: CreateVolumeRequest,
        delete_volume: DeleteVolumeRequest,
        controller_publish_volume: ControllerPublishVolumeRequest,
        controller_unpublish_volume: ControllerUnpublishVolumeRequest,
        validate_volume_capabilities: ValidateVolumeCapabilitiesRequest,
        list_volumes: ListVolumesRequest,
        controller_list_volume_health: ControllerListVolumeHealthRequest,
        controller_get_volume_health: ControllerGetVolumeHealthRequest,
        get_capacity: GetCapacityRequest,
        controller_get_capabilities: ControllerGetCapabilitiesRequest,
        create_snapshot: CreateSnapshotRequest,
        delete_snapshot: DeleteSnapshotRequest,
        list_snapshots: ListSnapshotsRequest,
        get_snapshot: GetSnapshotRequest,
        controller_expand_volume: ControllerExpandVolumeRequest,
        controller_get_volume: ControllerGetVolumeRequest,
        controller_modify_volume: ControllerModifyVolumeRequest,
    }
    GroupControllerClient {
        group_controller_get_capabilities: GroupControllerGetCapabilitiesRequest,
        create_volume_group_snapshot: CreateVolumeGroupSnapshotRequest,
        delete_volume_group_snapshot: DeleteVolumeGroupSnapshotRequest,
        get_volume_group_snapshot: GetVolumeGroupSnapshotRequest,
    }
    NodeClient {
        node_stage_volume: NodeStageVolumeRequest,
        node_unstage_volume: NodeUnstageVolumeRequest,
        node_publish_volume: NodePublishVolumeRequest,
        node_unpublish_volume: NodeUnpublishVolumeRequest,
        node_get_volume_stats: NodeGetVolumeStatsRequest,
        node_get_volume_health: NodeGetVolumeHealthRequest,
        node_get_storage_health: NodeGetStorageHealthRequest,
        node_expand_volume: NodeExpandVolumeRequest,
        node_get_capabilities: NodeGetCapabilitiesRequest,
        node_get_info: NodeGetInfoRequest,
    }
}

/// The streaming RPCs. Their responses are collected.
macro_rules! streams {
    ($($method:ident: $request:ident -> $answer:ident),* $(,)?) => {$(
        impl Call for csi::$request {
            type Answer = Vec<csi::$answer>;
            const NAME: &'static str = stringify!($method);
            async fn send(self, channel: Channel) -> Result<Vec<csi::$answer>, Status> {
                let mut client = SnapshotMetadataClient::new(channel);
                let mut stream = client.$method(self).await?.into_inner();
                let mut answers = Vec::new();
                while let Some(answer) = stream.message().await? {
                    answers.push(answer);
                }
                Ok(answers)
            }
        }
    )*};
}

streams! {
    get_metadata_allocated: GetMetadataAllocatedRequest -> GetMetadataAllocatedResponse,
    get_metadata_delta: GetMetadataDeltaRequest -> GetMetadataDeltaResponse,
}

impl Csi {
    /// Connects to the socket of a driver that serves.
    pub async fn connect(socket: &Path) -> Csi {
        Csi::try_connect(socket).await.expect("the driver serves")
    }

    /// Connects to the socket of a driver that may die meanwhile.
    pub async fn try_connect(socket: &Path) -> Result<Csi, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", text(socket)))
            .expect("a socket's path makes an endpoint");
        let channel = endpoint.connect().await?;
        Ok(Csi { channel })
    }

    /// Sends a call. A call without an answer fails the test.
    pub async fn call<C: Call>(&self, request: C) -> Result<C::Answer, Status> {
        let answer = tokio::time::timeout(PATIENCE, request.send(self.channel.clone())).await;
        answer.unwrap_or_else(|_| panic!("{} was not answered in {PATIENCE:?}", C::NAME))
    }

    /// Sends a call that must succeed.
    pub async fn ok<C: Call>(&self, request: C) -> C::Answer {
        self.call(request)
            .await
            .unwrap_or_else(|status| panic!("{}: {status:?}", C::NAME))
    }

    /// IDs of all volumes.
    pub async fn volume_ids(&self) -> Vec<String> {
        let entries = self.ok(csi::ListVolumesRequest::default()).await.entries;
        let volumes = entries.into_iter().filter_map(|e| e.volume);
        volumes.map(|v| v.volume_id).collect()
    }

    /// IDs of all snapshots.
    pub async fn snapshot_ids(&self) -> Vec<String> {
        let entries = self.ok(csi::ListSnapshotsRequest::default()).await.entries;
        let snapshots = entries.into_iter().filter_map(|e| e.snapshot);
        snapshots.map(|s| s.snapshot_id).collect()
    }
}

/// A capability to mount, with the mode.
pub fn mounted(fs: &str, mode: Mode) -> csi::VolumeCapability {
    let mount = MountVolume {
        fs_type: fs.to_owned(),
        ..Default::default()
    };
    capability(AccessType::Mount(mount), mode)
}

/// A capability to mount with these options for a single writer.
pub fn flagged(fs: &str, options: &str) -> csi::VolumeCapability {
    let mount_flags = vec![options.to_owned()];
    let mount = MountVolume {
        fs_type: fs.to_owned(),
        mount_flags,
        ..Default::default()
    };
    capability(AccessType::Mount(mount), Mode::SingleNodeWriter)
}

/// A capability to use the raw device, with the mode.
pub fn raw_block(mode: Mode) -> csi::VolumeCapability {
    capability(AccessType::Block(BlockVolume {}), mode)
}

fn capability(access: AccessType, mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access),
    }
}

/// A capacity range that requires at least this many bytes.
pub fn at_least(bytes: u64) -> Option<csi::CapacityRange> {
    let required_bytes = i64::try_from(bytes).expect("sizes of tests are small");
    Some(csi::CapacityRange {
        required_bytes,
        limit_bytes: 0,
    })
}

pub fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
    pairs.iter().map(owned).collect()
}

/// A plain volume: mounted ext4, one writer.
pub fn new_volume(name: &str, bytes: u64) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: at_least(bytes),
        volume_capabilities: vec![mounted("ext4", Mode::SingleNodeWriter)],
        ..Default::default()
    }
}

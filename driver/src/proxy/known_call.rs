//! The calls of CSI: the proxy can read their requests.

use hostloop_proto::csi;
use prost::Message;

use crate::grpc::event_fields::EventFields;
use crate::rpc_faults::{FaultSubject, each_csi_call, short_name};

/// What the proxy reads of a request.
pub(super) trait CsiRequest: FaultSubject + EventFields + Send {}

impl<R: FaultSubject + EventFields + Send> CsiRequest for R {}

/// A call of CSI.
pub(super) struct KnownCall {
    /// As in the path of the HTTP/2 request.
    path: &'static str,
    decode: fn(&[u8]) -> Option<Box<dyn CsiRequest>>,
}

macro_rules! known_calls {
    ($($path:literal $request:ident;)+) => {
        const CALLS: &[KnownCall] = &[
            $(KnownCall { path: $path, decode: decode::<csi::$request> }),+
        ];
    };
}

each_csi_call!(known_calls);

fn decode<R: Message + Default + CsiRequest + 'static>(
    message: &[u8],
) -> Option<Box<dyn CsiRequest>> {
    let request = R::decode(message).ok()?;
    Some(Box::new(request))
}

impl KnownCall {
    /// The call with this path.
    pub(super) fn at(path: &str) -> Option<&'static KnownCall> {
        CALLS.iter().find(|call| call.path == path)
    }

    /// The name of the RPC, such as `CreateVolume`.
    pub(super) fn name(&self) -> &'static str {
        short_name(self.path)
    }

    /// The request in a message; `None` if it is none.
    pub(super) fn read(&self, message: &[u8]) -> Option<Box<dyn CsiRequest>> {
        (self.decode)(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_by_its_call() {
        let call = KnownCall::at("/csi.v1.Node/NodeStageVolume").unwrap();
        let request = csi::NodeStageVolumeRequest {
            volume_id: "v1".to_owned(),
            ..Default::default()
        };
        let read = call.read(&request.encode_to_vec()).unwrap();
        assert_eq!(
            (call.name(), read.subject().about()),
            ("NodeStageVolume", "v1")
        );
        assert!(call.read(b"\xff\xff").is_none());
        assert!(KnownCall::at("/csi.v1.Node/NodeStage").is_none());
    }
}

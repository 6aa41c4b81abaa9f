//! A detail of a gRPC status that says that a pool had no room for a request, and that the call had
//! no effect.
//!
//! Codes leave that open: after RESOURCE_EXHAUSTED, a snapshot may still be in the making, and after
//! OUT_OF_RANGE, a size may be too large for every pool. The detail is a `google.rpc.ErrorInfo` in
//! `grpc-status-details-bin`, as gRPC defines it, so every client can read it, and those that don't
//! know it see the code alone.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::Any;

/// The domain of the reasons.
const DOMAIN: &str = "hostloop.csi.dev";
/// A pool had no room for the request. The call had no effect, and will have none.
const NO_ROOM: &str = "NO_ROOM";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(btree_map = "string, string", tag = "3")]
    metadata: BTreeMap<String, String>,
}

/// A status of a call that was refused for lack of room. Clients may read code and message from the
/// details, so both are in there too.
pub fn no_room(code: tonic::Code, message: String) -> tonic::Status {
    let info = ErrorInfo {
        reason: NO_ROOM.to_owned(),
        domain: DOMAIN.to_owned(),
        metadata: BTreeMap::new(),
    };
    let info = Any {
        type_url: ERROR_INFO.to_owned(),
        value: info.encode_to_vec(),
    };
    let details = RpcStatus {
        code: code as i32,
        message: message.clone(),
        details: vec![info],
    };
    tonic::Status::with_details(code, message, details.encode_to_vec().into())
}

/// True if the status says that its call was refused for lack of room, and had no effect. False for
/// a status without details, and for details that can't be read.
pub fn lacks_room(status: &tonic::Status) -> bool {
    let details = RpcStatus::decode(status.details()).map(|status| status.details);
    details.unwrap_or_default().iter().any(|detail| {
        detail.type_url == ERROR_INFO
            && ErrorInfo::decode(&*detail.value)
                .is_ok_and(|info| info.domain == DOMAIN && info.reason == NO_ROOM)
    })
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status};

    use super::*;

    #[test]
    fn a_status_keeps_its_code_and_message() {
        let status = no_room(Code::ResourceExhausted, "full".to_owned());
        assert_eq!(
            (status.code(), status.message()),
            (Code::ResourceExhausted, "full")
        );
        assert!(lacks_room(&status));
        let inside = RpcStatus::decode(status.details()).unwrap();
        assert_eq!((inside.code, &*inside.message), (8, "full"));
    }

    #[test]
    fn other_details_say_nothing() {
        let status = |details: Vec<u8>| {
            Status::with_details(Code::ResourceExhausted, "full", details.into())
        };
        let of = |type_url: &str, reason: &str, domain: &str| {
            let info = ErrorInfo {
                reason: reason.to_owned(),
                domain: domain.to_owned(),
                metadata: BTreeMap::new(),
            };
            let any = Any {
                type_url: type_url.to_owned(),
                value: info.encode_to_vec(),
            };
            RpcStatus {
                details: vec![any],
                ..RpcStatus::default()
            }
            .encode_to_vec()
        };
        assert!(lacks_room(&status(of(ERROR_INFO, NO_ROOM, DOMAIN))));
        for details in [
            Vec::new(),
            b"\xff\xff no message".to_vec(),
            of(ERROR_INFO, NO_ROOM, "csi.example.com"),
            of(ERROR_INFO, "RATE_LIMIT_EXCEEDED", DOMAIN),
            of("type.googleapis.com/google.rpc.RetryInfo", NO_ROOM, DOMAIN),
        ] {
            assert!(!lacks_room(&status(details.clone())), "{details:?}");
        }
    }
}

//! Reads requests. Offsets and numbers of results are left to the driver, as upstream does.

use std::fmt;

use hostloop_proto::snapshot_metadata::{GetMetadataAllocatedRequest, GetMetadataDeltaRequest};

use super::refusal::Refusal;
use crate::api::constants::is_name;

/// The longest ID in CSI.
const MAX_ID: usize = 128;

/// A caller's token. It goes to the API server for its review, and nowhere else.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Token(String);

impl Token {
    /// The token itself.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// What a caller asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetadataRequest {
    pub(super) token: Token,
    /// The namespace of the snapshot.
    pub(super) namespace: String,
    /// The name of the snapshot: of a delta, the newer one.
    pub(super) snapshot: String,
    /// The handle of a delta's older snapshot.
    pub(super) base: Option<String>,
    pub(super) starting_offset: i64,
    pub(super) max_results: i32,
}

impl TryFrom<GetMetadataAllocatedRequest> for MetadataRequest {
    type Error = Refusal;

    fn try_from(request: GetMetadataAllocatedRequest) -> Result<Self, Refusal> {
        Ok(MetadataRequest {
            token: Token(required("security_token", request.security_token)?),
            namespace: name("namespace", request.namespace)?,
            snapshot: name("snapshot_name", request.snapshot_name)?,
            base: None,
            starting_offset: request.starting_offset,
            max_results: request.max_results,
        })
    }
}

impl TryFrom<GetMetadataDeltaRequest> for MetadataRequest {
    type Error = Refusal;

    fn try_from(request: GetMetadataDeltaRequest) -> Result<Self, Refusal> {
        Ok(MetadataRequest {
            token: Token(required("security_token", request.security_token)?),
            namespace: name("namespace", request.namespace)?,
            base: Some(handle(request.base_snapshot_id)?),
            snapshot: name("target_snapshot_name", request.target_snapshot_name)?,
            starting_offset: request.starting_offset,
            max_results: request.max_results,
        })
    }
}

fn required(field: &'static str, value: String) -> Result<String, Refusal> {
    if value.is_empty() {
        Err(Refusal::Empty(field))
    } else {
        Ok(value)
    }
}

/// Reads the name of an object. Messages contain it, and reviews take it as it is.
fn name(field: &'static str, value: String) -> Result<String, Refusal> {
    let value = required(field, value)?;
    if is_name(&value) {
        Ok(value)
    } else {
        Err(Refusal::NotAName(field))
    }
}

fn handle(value: String) -> Result<String, Refusal> {
    let value = required("base_snapshot_id", value)?;
    if value.len() > MAX_ID {
        Err(Refusal::LongBase)
    } else {
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    type Change<R> = fn(&mut R);

    fn allocated() -> GetMetadataAllocatedRequest {
        GetMetadataAllocatedRequest {
            security_token: "t".to_owned(),
            namespace: "ns".to_owned(),
            snapshot_name: "s".to_owned(),
            starting_offset: -1,
            max_results: -2,
        }
    }

    fn delta() -> GetMetadataDeltaRequest {
        GetMetadataDeltaRequest {
            security_token: "t".to_owned(),
            namespace: "ns".to_owned(),
            base_snapshot_id: "b".to_owned(),
            target_snapshot_name: "s".to_owned(),
            starting_offset: -1,
            max_results: -2,
        }
    }

    #[test]
    fn complete_requests() {
        let expected = MetadataRequest {
            token: Token("t".to_owned()),
            namespace: "ns".to_owned(),
            snapshot: "s".to_owned(),
            base: None,
            starting_offset: -1,
            max_results: -2,
        };
        assert_eq!(
            MetadataRequest::try_from(allocated()).as_ref(),
            Ok(&expected)
        );
        let expected = MetadataRequest {
            base: Some("b".to_owned()),
            ..expected
        };
        assert_eq!(MetadataRequest::try_from(delta()), Ok(expected));
    }

    #[test]
    fn empty_fields() {
        let cases: [(&str, Change<GetMetadataAllocatedRequest>); 3] = [
            ("security_token", |request| request.security_token.clear()),
            ("namespace", |request| request.namespace.clear()),
            ("snapshot_name", |request| request.snapshot_name.clear()),
        ];
        for (field, clear) in cases {
            let mut request = allocated();
            clear(&mut request);
            let refused = MetadataRequest::try_from(request).unwrap_err();
            assert_eq!(refused, Refusal::Empty(field));
            assert_eq!(refused.code(), Code::InvalidArgument);
        }
        let cases: [(&str, Change<GetMetadataDeltaRequest>); 4] = [
            ("security_token", |request| request.security_token.clear()),
            ("namespace", |request| request.namespace.clear()),
            ("base_snapshot_id", |request| {
                request.base_snapshot_id.clear()
            }),
            ("target_snapshot_name", |request| {
                request.target_snapshot_name.clear()
            }),
        ];
        for (field, clear) in cases {
            let mut request = delta();
            clear(&mut request);
            let refused = MetadataRequest::try_from(request).unwrap_err();
            assert_eq!(refused, Refusal::Empty(field));
        }
    }

    #[test]
    fn names_that_no_object_can_have() {
        let long = "n".repeat(30_000);
        for (text, is_taken) in [
            ("ns", true),
            ("s.1-a", true),
            (".", false),
            ("../ns", false),
            ("ns/pods", false),
            ("ns?watch=true", false),
            ("n\u{1b}s", false),
            (long.as_str(), false),
        ] {
            let mut of_namespace = allocated();
            of_namespace.namespace = text.to_owned();
            let mut of_snapshot = delta();
            of_snapshot.target_snapshot_name = text.to_owned();
            for read in [
                MetadataRequest::try_from(of_namespace),
                MetadataRequest::try_from(of_snapshot),
            ] {
                assert_eq!(read.is_ok(), is_taken, "{text:?}");
                if let Err(refusal) = read {
                    assert_eq!(refusal.code(), Code::InvalidArgument);
                    assert!(refusal.to_string().len() < 100, "{refusal}");
                }
            }
        }
        for (bytes, is_taken) in [(MAX_ID, true), (MAX_ID + 1, false)] {
            let mut request = delta();
            request.base_snapshot_id = "b".repeat(bytes);
            assert_eq!(MetadataRequest::try_from(request).is_ok(), is_taken);
        }
    }

    #[test]
    fn a_token_is_not_shown() {
        let request = MetadataRequest::try_from(GetMetadataAllocatedRequest {
            security_token: "hush".to_owned(),
            ..allocated()
        });
        assert!(!format!("{request:?}").contains("hush"));
    }
}

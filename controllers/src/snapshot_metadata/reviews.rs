//! Who the caller is and what it may see: reviews by the API server, and what their answers mean.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};

use super::refusal::Refusal;
use super::request::Token;

/// The review of a token for an audience.
pub(super) fn token_review(token: &Token, audience: &str) -> TokenReview {
    TokenReview {
        spec: TokenReviewSpec {
            token: token.reveal().to_owned(),
            audiences: Some(vec![audience.to_owned()]),
        },
        ..TokenReview::default()
    }
}

/// The caller, by a reviewed token. An API server that knows no audiences returns none, and accepts
/// tokens that are for itself: these are refused.
pub(super) fn caller(review: TokenReview, audience: &str) -> Result<UserInfo, Refusal> {
    let unauthenticated = Refusal::Unauthenticated {
        audience: audience.to_owned(),
    };
    let Some(status) = review.status else {
        return Err(unauthenticated);
    };
    let is_for_audience = status
        .audiences
        .unwrap_or_default()
        .iter()
        .any(|one| one == audience);
    match status.user {
        Some(user)
            if status.authenticated == Some(true)
                && is_for_audience
                && user
                    .username
                    .as_deref()
                    .is_some_and(|name| !name.is_empty()) =>
        {
            Ok(user)
        }
        _ => Err(unauthenticated),
    }
}

/// The review of whether a caller may get the snapshots of a namespace.
pub(super) fn access_review(caller: UserInfo, namespace: &str) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: caller.username,
            uid: caller.uid,
            groups: caller.groups,
            extra: caller.extra,
            resource_attributes: Some(ResourceAttributes {
                verb: Some("get".to_owned()),
                group: Some("snapshot.storage.k8s.io".to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("volumesnapshots".to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// Fails unless the review allows the access.
pub(super) fn check_access(review: SubjectAccessReview, namespace: &str) -> Result<(), Refusal> {
    let status = review.status.unwrap_or_default();
    if status.allowed && status.denied != Some(true) {
        return Ok(());
    }
    Err(Refusal::Denied {
        namespace: namespace.to_owned(),
        reason: status
            .reason
            .filter(|reason| !reason.is_empty())
            .unwrap_or_else(|| "no rule allows it".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tonic::Code;

    use super::*;
    use crate::testing::read;

    #[test]
    fn callers() {
        let user = json!({"username": "u", "uid": "1", "groups": ["g"]});
        for (status, expected) in [
            (
                json!({"authenticated": true, "audiences": ["a"], "user": user}),
                Some("u"),
            ),
            (
                json!({"authenticated": true, "audiences": ["b", "a"], "user": user}),
                Some("u"),
            ),
            (
                json!({"authenticated": true, "audiences": ["b"], "user": user}),
                None,
            ),
            // The API server ignored the audience.
            (json!({"authenticated": true, "user": user}), None),
            (
                json!({"authenticated": false, "audiences": ["a"], "user": user}),
                None,
            ),
            (json!({"audiences": ["a"], "user": user}), None),
            (json!({"authenticated": true, "audiences": ["a"]}), None),
            (
                json!({"authenticated": true, "audiences": ["a"], "user": {"username": ""}}),
                None,
            ),
            (json!({"error": "expired"}), None),
            (Value::Null, None),
        ] {
            let review: TokenReview = read(json!({"spec": {"token": "t"}, "status": status}));
            match (caller(review, "a"), expected) {
                (Ok(user), Some(name)) => assert_eq!(user.username.as_deref(), Some(name)),
                (Err(refusal), None) => assert_eq!(refusal.code(), Code::Unauthenticated),
                (found, _) => panic!("{status}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_review_is_about_all_snapshots_of_the_namespace() {
        let caller: UserInfo = read(json!({
            "username": "u", "uid": "1", "groups": ["g"], "extra": {"e": ["x"]},
        }));
        let review = serde_json::to_value(access_review(caller, "ns")).unwrap();
        assert_eq!(
            review["spec"],
            json!({
                "user": "u", "uid": "1", "groups": ["g"], "extra": {"e": ["x"]},
                "resourceAttributes": {
                    "verb": "get", "group": "snapshot.storage.k8s.io", "version": "v1",
                    "resource": "volumesnapshots", "namespace": "ns",
                },
            })
        );
    }

    #[test]
    fn who_has_access() {
        for (status, allowed) in [
            (json!({"allowed": true}), true),
            (
                json!({"allowed": true, "denied": false, "reason": "x"}),
                true,
            ),
            (json!({"allowed": true, "denied": true}), false),
            (json!({"allowed": false}), false),
            (json!({"allowed": false, "evaluationError": "x"}), false),
            (Value::Null, false),
        ] {
            let review: SubjectAccessReview = read(json!({"spec": {}, "status": status}));
            let code = check_access(review, "ns").map_err(|refusal| refusal.code());
            let expected = if allowed {
                Ok(())
            } else {
                Err(Code::PermissionDenied)
            };
            assert_eq!(code, expected, "{status}");
        }
    }
}

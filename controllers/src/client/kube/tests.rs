use kube::api::PartialObjectMeta;

use super::*;
use crate::kept_fields::{CLAIM_ANNOTATIONS, METADATA};
use crate::testing::{DRIVER, World, volume, with};

/// A volume of which nothing is known must not pass for one without a handle.
#[tokio::test]
async fn an_object_that_is_too_large_is_refused() {
    let world = World::new(&[]);
    let kube = &world.context.kube;
    world.api.put(volume("small", DRIVER, "h"));
    assert!(kube.each::<PersistentVolume>(drop).await.is_ok());
    let finalizers = vec!["example.com/f"; 100_000];
    let large = json!({"metadata": {"finalizers": finalizers}});
    world.api.put(with(volume("large", DRIVER, "h"), large));
    let refused = |error: ApiError| {
        let text = error.to_string();
        assert!(
            matches!(error, ApiError::Rejected { code: 413, .. }),
            "{text}"
        );
        assert!(text.contains("too large"), "{text}");
    };
    refused(
        kube.get::<PersistentVolume>("", "large")
            .await
            .expect_err("a refusal"),
    );
    refused(
        kube.each::<PersistentVolume>(drop)
            .await
            .expect_err("a refusal"),
    );
    let mut names = Vec::new();
    let take = |volume: PartialObjectMeta<PersistentVolume>| names.push(volume.name_any());
    kube.each_metadata(take).await.expect("names");
    assert_eq!(names, ["large", "small"]);
}

/// Users write any text where the name of an object is expected.
#[tokio::test]
async fn what_can_t_be_a_name_is_not_asked_for() {
    type Claim = PersistentVolumeClaim;
    let world = World::new(&[]);
    let kube = &world.context.kube;
    world.api.requests();
    let long = "n".repeat(254);
    let long = long.as_str();
    for (namespace, name) in [
        ("ns", "?"),
        ("ns", "?watch=true"),
        ("ns", "?limit=1"),
        ("ns", "a/b"),
        ("ns", "../../nodes/n"),
        ("ns", "#"),
        ("ns", "%3f"),
        ("ns", ""),
        ("ns", "A"),
        ("ns", long),
        ("", "?"),
        ("?watch=true", "a"),
        ("a/b", "c"),
        (long, "a"),
    ] {
        let found = kube.get::<Claim>(namespace, name).await;
        assert!(matches!(found, Ok(None)), "{namespace} {name}");
        let found = kube.get_fields::<Claim>(namespace, name, &CLAIM_ANNOTATIONS);
        assert!(matches!(found.await, Ok(None)), "{namespace} {name}");
        let found = kube.get_metadata::<Claim>(namespace, name, &METADATA);
        assert!(matches!(found.await, Ok(None)), "{namespace} {name}");
        assert!(world.api.requests().is_empty(), "{namespace} {name}");
    }
    let found = kube.get::<Claim>("ns", "a-1.b").await;
    assert!(matches!(found, Ok(None)));
    assert_eq!(world.api.requests().len(), 1);
}

/// A process may be paused after it checked its lead, while the write waits for the rate limit.
#[tokio::test(start_paused = true)]
async fn a_write_that_waited_past_the_end_of_the_lead_is_not_sent() {
    let world = World::new(&[]);
    let (until, leader) = Leadership::elected();
    until.send_replace(Some(Instant::now() + Duration::from_secs(5)));
    let limited = world.context.kube.limited(Limit::new(0.1, 1));
    let kube = limited.fenced(&leader);
    let volume = |name| crate::testing::read(volume(name, DRIVER, "h"));
    let create = async |name| kube.create::<PersistentVolume>(&volume(name)).await;
    create("in-time").await.expect("the lead lasts");
    assert!(leader.leads());
    let refused = create("late").await.expect_err("the lead ended");
    assert!(matches!(refused, ApiError::NotLeading { .. }), "{refused}");
    let read = async |name| {
        kube.get::<PersistentVolume>("", name)
            .await
            .expect("reads work")
    };
    assert!(read("in-time").await.is_some() && read("late").await.is_none());
}

#[test]
fn errors_by_status() {
    let unfit = UNFIT_PATCH;
    let uid = "claims \"data\" is invalid: metadata.uid: Invalid value: \"u\": field is \
               immutable";
    let precondition = "Precondition failed: UID in precondition: u, UID in object meta: v";
    for (code, reason, message, word, is_outage) in [
        (404, "NotFound", "", "not found", false),
        (409, "AlreadyExists", "", "exists", false),
        (409, "Conflict", "", "conflict", false),
        (422, "Invalid", unfit, "conflict", false),
        (422, "Invalid", uid, "conflict", false),
        (422, "Invalid", precondition, "conflict", false),
        (422, "Invalid", "spec: Invalid value", "refused", false),
        (403, "Forbidden", "", "refused", false),
        (429, "TooManyRequests", "", "failed", false),
        (500, "InternalError", "", "failed", false),
        (503, "ServiceUnavailable", "", "failed", true),
        (504, "Timeout", "", "failed", true),
    ] {
        let status = kube::core::Status {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..kube::core::Status::default()
        };
        let error = ApiError::new(String::new(), kube::Error::Api(Box::new(status)));
        assert_eq!(
            (error.word(), error.is_outage()),
            (word, is_outage),
            "{code} {message}"
        );
    }
}

use super::*;
use crate::controller::tests::bench::*;
use crate::controller::tests::config;

#[test]
fn invalid_requests_are_refused_by_field() {
    let cases: [(RequestChange, &str); 12] = [
        (|r| r.name.clear(), "name"),
        (|r| r.name = "a".repeat(129), "name"),
        (|r| r.name.push('\0'), "name"),
        (|r| r.volume_capabilities.clear(), "volume_capabilities"),
        (
            |r| r.capacity_range = range(-1, 0),
            "capacity_range.required_bytes",
        ),
        (
            |r| r.capacity_range = range(2, 1),
            "capacity_range.limit_bytes",
        ),
        (|r| r.parameters = pairs("x=y"), r#"parameters["x"]"#),
        (
            |r| r.mutable_parameters = pairs("pool=y"),
            r#"mutable_parameters["pool"]"#,
        ),
        (
            |r| r.volume_content_source = Some(csi::VolumeContentSource { r#type: None }),
            "volume_content_source",
        ),
        (
            |r| r.volume_content_source = from_volume(""),
            "volume_content_source.volume.volume_id",
        ),
        (
            |r| r.accessibility_requirements = required([]),
            "accessibility_requirements",
        ),
        (
            |r| r.volume_content_source = from_volume("../../x"),
            "NotFound",
        ),
    ];
    for (change, expected) in cases {
        assert_answer(
            CreateRequest::read(&changed_request(change), &config()),
            expected,
        );
    }
}

#[test]
fn mutable_parameters_win_and_can_be_switched_off() {
    let change: RequestChange = |r| {
        r.parameters = pairs("discard=true readAheadKiB=64");
        r.mutable_parameters = pairs("discard=false");
    };
    let request = CreateRequest::read(&changed_request(change), &config()).unwrap();
    assert_eq!(request.changes.discard, Some(false));
    assert_eq!(request.changes.read_ahead_kib, Some(64));
    let off = Config {
        modify: false,
        ..config()
    };
    assert_answer(
        CreateRequest::read(&changed_request(change), &off),
        "mutable_parameters",
    );
}

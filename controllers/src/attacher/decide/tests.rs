use super::*;
use serde_json::from_value;

const FINALIZER: &str = "external-attacher/csi-example";

fn rules() -> Rules {
    Rules {
        driver: "csi.example".to_owned(),
        finalizer: FINALIZER.to_owned(),
        attaches: true,
        read_only: true,
        multi_writer: false,
        default_fstype: "ext4".to_owned(),
    }
}

/// Merges `patch` into `base`.
fn over(mut base: Value, patch: Value) -> Value {
    json_patch::merge(&mut base, &patch);
    base
}

fn attachment(patch: Value) -> VolumeAttachment {
    let base = json!({
        "metadata": {"name": "va", "uid": "u", "resourceVersion": "7"},
        "spec": {
            "attacher": "csi.example", "nodeName": "n1",
            "source": {"persistentVolumeName": "pv"},
        },
        "status": {"attached": false},
    });
    from_value(over(base, patch)).unwrap()
}

fn volume(patch: Value) -> PersistentVolume {
    let base = json!({
        "metadata": {"name": "pv", "resourceVersion": "3"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "csi": {
                "driver": "csi.example", "volumeHandle": "h", "readOnly": true,
                "volumeAttributes": {"a": "b"},
                "controllerPublishSecretRef": {"name": "s", "namespace": "ns"},
            },
        },
    });
    from_value(over(base, patch)).unwrap()
}

fn csi_node(driver: &str) -> CSINode {
    from_value(json!({
        "metadata": {"name": "n1"},
        "spec": {"drivers": [{"name": driver, "nodeID": "id-1"}]},
    }))
    .unwrap()
}

const DELETED: &str = "2026-01-02T03:04:05Z";

/// The action or the error, in short.
fn told(rules: &Rules, seen: Seen<'_>) -> String {
    match rules.decide(seen) {
        Ok(Action::Nothing) => "nothing".to_owned(),
        Ok(Action::MarkAttached) => "mark".to_owned(),
        Ok(Action::Attach(how)) => format!("attach {}", how.request.node_id),
        Ok(Action::Detach(how)) => format!("detach {}", how.request.node_id),
        Err(trouble) => trouble.to_string(),
    }
}

#[test]
fn what_is_done() {
    let attached = json!({"status": {"attached": true}});
    let deleted = json!({"metadata": {"deletionTimestamp": DELETED, "finalizers": ["x"]}});
    let ours = json!({"metadata": {"deletionTimestamp": DELETED, "finalizers": ["x", FINALIZER]}});
    let annotated = over(
        ours.clone(),
        json!({"metadata": {"annotations": {NODE_ID: "id-0"}}}),
    );
    for (attachment_is, forced, expected) in [
        (json!({}), false, "attach id-1"),
        (json!({"status": null}), false, "attach id-1"),
        (attached.clone(), false, "nothing"),
        (attached.clone(), true, "attach id-1"),
        (deleted.clone(), false, "nothing"),
        (deleted, true, "detach id-1"),
        (ours.clone(), false, "detach id-1"),
        // The CSINode's ID takes precedence over the annotation.
        (annotated.clone(), false, "detach id-1"),
        (json!({"spec": {"attacher": "other"}}), true, "nothing"),
        (
            json!({"spec": {"source": {"persistentVolumeName": null}}}),
            false,
            "its source has neither inlineVolumeSpec nor persistentVolumeName",
        ),
        (
            json!({"spec": {"source": {"inlineVolumeSpec": {}}}}),
            false,
            "its source has both inlineVolumeSpec and persistentVolumeName",
        ),
        (
            json!({"spec": {"source": {"persistentVolumeName": null, "inlineVolumeSpec": {}}}}),
            false,
            "the inline volume is not a CSI volume",
        ),
    ] {
        let seen = Seen {
            attachment: &attachment(attachment_is.clone()),
            volume: Some(&volume(json!({}))),
            csi_node: Some(&csi_node("csi.example")),
            forced,
        };
        assert_eq!(told(&rules(), seen), expected, "{attachment_is} {forced}");
    }
    for (attachment_is, node, expected) in [
        (json!({}), None, "there is no CSINode n1"),
        (
            json!({}),
            Some("other"),
            "CSINode n1 does not contain driver csi.example",
        ),
        // Only detaching uses the annotation.
        (
            json!({"metadata": {"annotations": {NODE_ID: "id-0"}}}),
            None,
            "there is no CSINode n1",
        ),
        (annotated.clone(), None, "detach id-0"),
        (annotated, Some("other"), "detach id-0"),
        (ours, None, "there is no CSINode n1"),
    ] {
        let csi_node = node.map(csi_node);
        let seen = Seen {
            attachment: &attachment(attachment_is.clone()),
            volume: Some(&volume(json!({}))),
            csi_node: csi_node.as_ref(),
            forced: false,
        };
        assert_eq!(told(&rules(), seen), expected, "{attachment_is} {node:?}");
    }
}

#[test]
fn what_volumes_there_are() {
    let deleting = json!({"metadata": {"deletionTimestamp": DELETED, "finalizers": [FINALIZER]}});
    for (is, attaching, detaching) in [
        (
            None,
            "there is no PersistentVolume pv",
            "there is no PersistentVolume pv",
        ),
        (
            Some(deleting),
            "PersistentVolume pv is marked for deletion",
            "detach id-1",
        ),
        (
            Some(json!({"spec": {"csi": null}})),
            "PersistentVolume pv is not a CSI volume",
            "PersistentVolume pv is not a CSI volume",
        ),
        (
            Some(json!({"spec": {"csi": {"driver": "other"}}})),
            "PersistentVolume pv is a volume of CSI driver other",
            "PersistentVolume pv is a volume of CSI driver other",
        ),
        (
            Some(json!({"spec": {"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}})),
            "PersistentVolume pv: access mode ReadWriteOncePod excludes all others",
            "detach id-1",
        ),
    ] {
        let volume = is.clone().map(volume);
        let deleted =
            json!({"metadata": {"deletionTimestamp": DELETED, "finalizers": [FINALIZER]}});
        for (deleted, expected) in [(json!({}), attaching), (deleted, detaching)] {
            let seen = Seen {
                attachment: &attachment(deleted),
                volume: volume.as_ref(),
                csi_node: Some(&csi_node("csi.example")),
                forced: false,
            };
            assert_eq!(told(&rules(), seen), expected, "{is:?}");
        }
    }
}

#[test]
fn how_it_is_attached() {
    let plain = Rules {
        read_only: false,
        ..rules()
    };
    for (rules, read_only) in [(rules(), true), (plain, false)] {
        let seen = Seen {
            attachment: &attachment(json!({})),
            volume: Some(&volume(json!({}))),
            csi_node: Some(&csi_node("csi.example")),
            forced: false,
        };
        let Ok(Action::Attach(how)) = rules.decide(seen) else {
            panic!("not attached");
        };
        assert_eq!(how.request.volume_id, "h");
        assert_eq!(how.request.readonly, read_only);
        assert_eq!(how.request.volume_context["a"], "b");
        assert_eq!(how.secret.unwrap().name.as_deref(), Some("s"));
        assert!(how.needs_volume_finalizer);
        let expected = json!({"metadata": {
            "finalizers": [FINALIZER], "annotations": {NODE_ID: "id-1"},
            "uid": "u", "resourceVersion": "7",
        }});
        assert_eq!(how.prepare, Some(expected));
    }
}

#[test]
fn an_inline_volume_has_no_finalizer_and_no_name() {
    let inline = json!({"spec": {"source": {
        "persistentVolumeName": null,
        "inlineVolumeSpec": {
            "accessModes": ["ReadWriteMany"],
            "csi": {"driver": "csi.example", "volumeHandle": "inline"},
        },
    }}});
    let seen = Seen {
        attachment: &attachment(inline),
        volume: None,
        csi_node: Some(&csi_node("csi.example")),
        forced: false,
    };
    let Ok(Action::Attach(how)) = rules().decide(seen) else {
        panic!("not attached");
    };
    assert_eq!(how.request.volume_id, "inline");
    assert!(!how.needs_volume_finalizer && how.secret.is_none());
}

#[test]
fn a_driver_that_does_not_attach() {
    let rules = Rules {
        attaches: false,
        ..rules()
    };
    for (is, expected) in [
        (json!({}), "mark"),
        (json!({"status": {"attached": true}}), "nothing"),
        (json!({"metadata": {"deletionTimestamp": DELETED}}), "mark"),
    ] {
        let seen = Seen {
            attachment: &attachment(is.clone()),
            volume: None,
            csi_node: None,
            forced: false,
        };
        assert_eq!(told(&rules, seen), expected, "{is}");
    }
}

#[test]
fn finalizers_come_and_go() {
    let rules = rules();
    for (finalizers, expected) in [
        (
            json!(null),
            Some(json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": "3"},
                {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]},
            ])),
        ),
        (
            json!(["x"]),
            Some(json!([
                {"op": "test", "path": "/metadata/finalizers", "value": ["x"]},
                {"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER},
            ])),
        ),
        (json!(["x", FINALIZER]), None),
    ] {
        let volume = volume(json!({"metadata": {"finalizers": finalizers}}));
        assert_eq!(rules.protect(&volume), expected);
    }
    for (finalizers, deleted, named, expected) in [
        (
            json!(["x", FINALIZER]),
            Some(DELETED),
            false,
            Some("/metadata/finalizers/1"),
        ),
        (
            json!([FINALIZER]),
            Some(DELETED),
            false,
            Some("/metadata/finalizers/0"),
        ),
        (json!([FINALIZER]), Some(DELETED), true, None),
        (json!([FINALIZER]), None, false, None),
        (json!(["x"]), Some(DELETED), false, None),
    ] {
        let metadata = json!({"finalizers": finalizers, "deletionTimestamp": deleted});
        let volume = volume(json!({ "metadata": metadata }));
        let expected = expected.map(|path| {
            json!([
                {"op": "test", "path": path, "value": FINALIZER},
                {"op": "remove", "path": path},
            ])
        });
        assert_eq!(rules.unprotect(&volume, named), expected);
    }
    let both = attachment(json!({"metadata": {"finalizers": [FINALIZER, "x"]}}));
    let bound = json!({"finalizers": ["x"], "uid": "u", "resourceVersion": "7"});
    assert_eq!(rules.release(&both), Some(json!({ "metadata": bound })));
    assert_eq!(rules.release(&attachment(json!({}))), None);
}

#[test]
fn what_asks_for_work() {
    let error = json!({"message": "no", "time": DELETED});
    let with = json!({"metadata": {"finalizers": [FINALIZER], "annotations": {NODE_ID: "id-1"}}});
    for (old, new, asks) in [
        (
            json!({}),
            json!({"metadata": {"resourceVersion": "8"}}),
            false,
        ),
        (json!({}), json!({"status": {"attachError": error}}), false),
        (json!({"status": {"detachError": error}}), json!({}), false),
        (json!({}), with.clone(), false),
        (with, json!({}), true),
        (json!({}), json!({"status": {"attached": true}}), true),
        (
            json!({}),
            json!({"metadata": {"deletionTimestamp": DELETED}}),
            true,
        ),
        (
            json!({}),
            json!({"metadata": {"annotations": {"x": "y"}}}),
            true,
        ),
        (json!({}), json!({"metadata": {"finalizers": ["x"]}}), true),
        (json!({}), json!({"metadata": {"uid": "v"}}), true),
    ] {
        let seen = rules().asks(&attachment(old.clone()), &attachment(new.clone()));
        assert_eq!(seen, asks, "{old} -> {new}");
    }
}

#[test]
fn names_are_those_kubelet_awaits() {
    let name = expected_name("h", "csi.example", "n1");
    // The expected value is the output of `printf hcsi.examplen1 | sha256sum`.
    let sum = "cf85157d754b2a6e4ff460d9984e6fdc89bd1140f4d0a49d7ccc92c5a2eaef6e";
    assert_eq!(name, format!("csi-{sum}"));
    assert_ne!(name, expected_name("h", "csi.example", "n2"));
}

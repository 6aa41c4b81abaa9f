use super::*;
use crate::testing::{read, with as over};

const FINALIZER: &str = "external-attacher/csi-example";

fn settings() -> Settings {
    Settings {
        driver: "csi.example".to_owned(),
        finalizer: FINALIZER.to_owned(),
        attaches: true,
        read_only: true,
        multi_writer: false,
        default_fstype: "ext4".to_owned(),
    }
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
    read(over(base, patch))
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
    read(over(base, patch))
}

fn csi_node(driver: &str) -> CSINode {
    read(json!({
        "metadata": {"name": "n1"},
        "spec": {"drivers": [{"name": driver, "nodeID": "id-1"}]},
    }))
}

const DELETED: &str = "2026-01-02T03:04:05Z";

/// The step or the error, in short. The CSINode lists the driver `node`.
fn decided(
    settings: &Settings,
    attachment_patch: &Value,
    volume_patch: Option<&Value>,
    node: Option<&str>,
    forced: bool,
) -> String {
    let facts = Facts {
        attachment: Arc::new(attachment(attachment_patch.clone())),
        volume: volume_patch.map(|patch| Arc::new(volume(patch.clone()))),
        csi_node: node.map(|driver| Arc::new(csi_node(driver))),
        forced,
    };
    match settings.decide(&facts) {
        Ok(Step::Nothing) => "nothing".to_owned(),
        Ok(Step::MarkAttached) => "mark".to_owned(),
        Ok(Step::Attach(how)) => format!("attach {}", how.request.node_id),
        Ok(Step::Detach(how)) => format!("detach {}", how.request.node_id),
        Err(trouble) => trouble.to_string(),
    }
}

/// An attachment that is being deleted, with these finalizers.
fn deleted(finalizers: &[&str]) -> Value {
    json!({"metadata": {"deletionTimestamp": DELETED, "finalizers": finalizers}})
}

const NODE: Option<&str> = Some("csi.example");

#[test]
fn steps_for_attachments() {
    let new = &json!({});
    let attached = &json!({"status": {"attached": true}});
    let (others, ours) = (&deleted(&["x"]), &deleted(&["x", FINALIZER]));
    let annotated = &json!({"metadata": {"annotations": {NODE_ID: "id-0"}}});
    let both = &over(ours.clone(), annotated.clone());
    let nameless = json!({"metadata": {"annotations": {NODE_ID: ""}}});
    let nameless = &over(ours.clone(), nameless);
    let source = |source: Value| json!({"spec": {"source": source}});
    let no_source = &source(json!({"persistentVolumeName": null}));
    let two_sources = &source(json!({"inlineVolumeSpec": {}}));
    let inline = json!({"persistentVolumeName": null, "inlineVolumeSpec": {}});
    let no_node = "there is no CSINode n1";
    let other_node = "CSINode n1 does not contain driver csi.example";
    let has_neither = "spec.source has neither inlineVolumeSpec nor persistentVolumeName";
    let has_both = "spec.source has both inlineVolumeSpec and persistentVolumeName";
    let not_csi = "the inline volume is not a CSI volume";
    let other = &json!({"spec": {"attacher": "other"}});
    for (attachment, node, forced, expected) in [
        (new, NODE, false, "attach id-1"),
        (&json!({"status": null}), NODE, false, "attach id-1"),
        (attached, NODE, false, "nothing"),
        (attached, NODE, true, "attach id-1"),
        (others, NODE, false, "nothing"),
        (others, NODE, true, "detach id-1"),
        (ours, NODE, false, "detach id-1"),
        // The CSINode's ID takes precedence over the annotation.
        (both, NODE, false, "detach id-1"),
        (other, NODE, true, "nothing"),
        (no_source, NODE, false, has_neither),
        (two_sources, NODE, false, has_both),
        (&source(inline), NODE, false, not_csi),
        (new, None, false, no_node),
        (new, Some("other"), false, other_node),
        // Only detaching uses the annotation.
        (annotated, None, false, no_node),
        (both, None, false, "detach id-0"),
        (both, Some("other"), false, "detach id-0"),
        // That would detach it from all nodes.
        (nameless, None, false, no_node),
        (nameless, NODE, false, "detach id-1"),
        (ours, None, false, no_node),
    ] {
        let found = decided(&settings(), attachment, Some(new), node, forced);
        assert_eq!(found, expected, "{attachment} {node:?} {forced}");
    }
    let settings = Settings {
        attaches: false,
        ..settings()
    };
    for (attachment, expected) in [
        (new, "mark"),
        (attached, "nothing"),
        (&deleted(&[]), "mark"),
    ] {
        let found = decided(&settings, attachment, None, None, false);
        assert_eq!(found, expected, "{attachment}");
    }
}

#[test]
fn volumes_of_attachments() {
    let spec = |patch: Value| json!({ "spec": patch });
    let once_pod = json!(["ReadWriteOncePod", "ReadWriteOnce"]);
    let other = "is a volume of CSI driver other";
    let excludes = ": the access mode ReadWriteOncePod cannot be combined with others";
    // What attaching says of the PV. Detaching works (`None`) or says the same.
    for (volume, attaching, fails) in [
        (
            Some(deleted(&[FINALIZER])),
            ": clone its claim to keep the data, then delete the claim and its pods",
            false,
        ),
        (
            Some(spec(json!({"csi": null}))),
            " is not a CSI volume",
            true,
        ),
        (Some(spec(json!({"csi": {"driver": "other"}}))), other, true),
        (
            Some(spec(json!({"accessModes": once_pod}))),
            excludes,
            false,
        ),
        (None, "there is no PersistentVolume pv", true),
    ] {
        let found =
            |attachment: &Value| decided(&settings(), attachment, volume.as_ref(), NODE, false);
        let text = found(&json!({}));
        assert!(
            text.contains("PersistentVolume pv") && text.ends_with(attaching),
            "{text}"
        );
        let detached = found(&deleted(&[FINALIZER]));
        let expected = if fails { &*text } else { "detach id-1" };
        assert_eq!(detached, expected, "{volume:?}");
    }
}

#[test]
fn how_it_is_attached() {
    let plain = Settings {
        read_only: false,
        ..settings()
    };
    for (settings, read_only) in [(settings(), true), (plain, false)] {
        let facts = Facts {
            attachment: Arc::new(attachment(json!({}))),
            volume: Some(Arc::new(volume(json!({})))),
            csi_node: Some(Arc::new(csi_node("csi.example"))),
            forced: false,
        };
        let Ok(Step::Attach(how)) = settings.decide(&facts) else {
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
    let facts = Facts {
        attachment: Arc::new(attachment(inline)),
        volume: None,
        csi_node: Some(Arc::new(csi_node("csi.example"))),
        forced: false,
    };
    let Ok(Step::Attach(how)) = settings().decide(&facts) else {
        panic!("not attached");
    };
    assert_eq!(how.request.volume_id, "inline");
    assert!(!how.needs_volume_finalizer && how.secret.is_none());
}

#[test]
fn changes_that_need_work() {
    let error = json!({"message": "no", "time": DELETED});
    let with = json!({"metadata": {"finalizers": [FINALIZER], "annotations": {NODE_ID: "id-1"}}});
    let new = || json!({});
    let metadata = |patch: Value| json!({ "metadata": patch });
    let status = |patch: Value| json!({ "status": patch });
    for (old, new, asks) in [
        (new(), metadata(json!({"resourceVersion": "8"})), false),
        (new(), status(json!({"attachError": error})), false),
        (status(json!({"detachError": error})), new(), false),
        (new(), with.clone(), false),
        (with, new(), true),
        (new(), status(json!({"attached": true})), true),
        (new(), metadata(json!({"deletionTimestamp": DELETED})), true),
        (new(), metadata(json!({"annotations": {"x": "y"}})), true),
        (new(), metadata(json!({"finalizers": ["x"]})), true),
        (new(), metadata(json!({"uid": "v"})), true),
    ] {
        let found = settings().asks(&attachment(old.clone()), &attachment(new.clone()));
        assert_eq!(found, asks, "{old} -> {new}");
    }
}

#[test]
fn a_node_wakes_its_attachments_when_the_driver_registers() {
    let node = |driver: &str| Arc::new(csi_node(driver));
    let (ours, other) = (node("csi.example"), node("other"));
    let applied = |old: &Arc<CSINode>, new: &Arc<CSINode>| Change::Applied {
        old: Some(old.clone()),
        new: new.clone(),
    };
    for (change, expected) in [
        (applied(&other, &ours), Some("n1")),
        (applied(&ours, &ours), None),
        (applied(&ours, &other), None),
        (Change::Deleted(ours.clone()), None),
    ] {
        assert_eq!(
            settings().newly_registered(&change).as_deref(),
            expected,
            "{change:?}"
        );
    }
}

#[test]
fn one_process_is_responsible_for_an_attachment() {
    use Ownership::*;
    // Owner of the shared volume, own label without a known volume, is to the process's node
    for (owner, is_labelled, is_to_its_node, expected) in [
        (None, None, true, true),
        (None, None, false, false),
        (Some(Local), None, true, true),
        (Some(Local), None, false, true),
        (Some(Remote), None, true, false),
        (Some(Remote), None, false, false),
        (Some(Unknown), None, true, false),
        (Some(Unknown), None, false, false),
        (None, Some(true), false, true),
        (None, Some(true), true, true),
        (None, Some(false), true, false),
        (None, Some(false), false, false),
        (Some(Local), Some(false), false, true),
        (Some(Remote), Some(true), true, false),
    ] {
        let found = serves(owner, is_labelled, is_to_its_node);
        let what = format!("{owner:?} {is_labelled:?} {is_to_its_node}");
        assert_eq!(found, expected, "{what}");
    }
}

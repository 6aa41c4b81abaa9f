use super::*;
use tonic::Status;

fn claim(
    requested_class: &str,
    current: &str,
    status: &str,
    modifying: bool,
) -> PersistentVolumeClaim {
    let name = |name: &str| match name {
        "" => Value::Null,
        name => json!(name),
    };
    let status = match status.split_once(' ') {
        None if status.is_empty() => Value::Null,
        None => json!({"status": status}),
        Some((status, target)) => {
            json!({"status": status, "targetVolumeAttributesClassName": target})
        }
    };
    let conditions = if modifying {
        json!([{"type": MODIFYING, "status": "True"}])
    } else {
        json!([])
    };
    crate::testing::read(json!({
        "metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "5"},
        "spec": {"volumeName": "pv", "volumeAttributesClassName": name(requested_class)},
        "status": {
            "phase": "Bound", "conditions": conditions,
            "currentVolumeAttributesClassName": name(current), "modifyVolumeStatus": status,
        },
    }))
}

#[test]
fn next_steps() {
    let begin = |class: &str| Step::Begin(class.to_owned());
    let go_on = |class: &str| Step::Continue(class.to_owned());
    // Requested class, current class, status, uncertain, ModifyingVolume condition, expected step.
    for (requested_class, current, status, uncertain, modifying, expected) in [
        ("", "", "", false, false, Step::Nothing),
        ("a", "a", "", false, false, Step::Nothing),
        ("a", "a", "", true, false, Step::Nothing),
        ("b", "a", "", false, false, begin("b")),
        ("b", "", "", false, false, begin("b")),
        ("b", "a", "Pending", false, false, begin("b")),
        ("b", "a", "Pending c", true, false, begin("b")),
        ("b", "a", "Infeasible b", false, true, begin("b")),
        ("c", "a", "Infeasible b", false, true, begin("c")),
        ("c", "a", "Infeasible b", true, true, begin("c")),
        ("b", "a", "InProgress b", false, true, begin("b")),
        ("c", "a", "InProgress b", false, true, begin("c")),
        ("c", "a", "InProgress b", true, true, go_on("b")),
        // Back to the current class, which the volume may no longer have.
        ("a", "a", "InProgress b", true, true, go_on("b")),
        ("a", "a", "InProgress b", false, true, begin("a")),
        ("a", "a", "Infeasible b", false, true, begin("a")),
        ("a", "a", "Pending", false, false, begin("a")),
        // The request was withdrawn.
        ("", "a", "", false, false, Step::Nothing),
        ("", "", "Pending", false, false, Step::Nothing),
        ("", "", "Infeasible b", false, true, Step::Cancel),
        ("", "", "Infeasible b", false, false, Step::Nothing),
        ("", "", "InProgress b", false, true, go_on("b")),
        ("", "", "InProgress b", true, true, go_on("b")),
    ] {
        let claim = claim(requested_class, current, status, modifying);
        let what = format!("{requested_class:?} {current:?} {status:?} {uncertain}");
        assert_eq!(decide(&claim, uncertain), expected, "{what}");
    }
    let mut lost = claim("b", "a", "", false);
    lost.status.as_mut().unwrap().phase = Some("Lost".to_owned());
    assert_eq!(decide(&lost, false), Step::Nothing);
}

#[test]
fn requests_of_the_last_target() {
    for (requested_class, status, expected) in [
        ("b", "Infeasible b", true),
        ("b", "InProgress b", true),
        ("c", "Infeasible b", false),
        ("", "Infeasible b", false),
        ("b", "", false),
        ("b", "Pending", false),
    ] {
        let claim = claim(requested_class, "a", status, false);
        assert_eq!(is_same_try(&claim), expected, "{requested_class} {status}");
    }
}

#[test]
fn changes_that_need_work() {
    for (old, new, expected) in [
        (("a", ""), ("a", ""), false),
        (("a", ""), ("b", ""), true),
        (("a", ""), ("", ""), true),
        (("b", ""), ("b", "InProgress b"), false),
        (("b", "InProgress b"), ("b", "Infeasible b"), false),
        (("b", "InProgress b"), ("b", ""), true),
    ] {
        let claims =
            [old, new].map(|(requested_class, status)| claim(requested_class, "a", status, false));
        assert_eq!(asks(&claims[0], &claims[1]), expected, "{old:?} {new:?}");
    }
}

#[test]
fn patches() {
    let plain = claim("b", "a", "", false);
    let begun = claim("b", "a", "InProgress b", false);
    let status = |patch: Option<Value>| patch.map(|patch| patch["status"].clone());
    let pending = status(pending_patch(&plain)).unwrap();
    assert_eq!(
        pending,
        json!({"modifyVolumeStatus": {"status": "Pending"}})
    );
    assert_eq!(pending_patch(&claim("b", "a", "Pending", false)), None);

    let begin = status(begin_patch(&plain, "b")).unwrap();
    assert_eq!(
        begin["modifyVolumeStatus"],
        json!({"status": "InProgress", "targetVolumeAttributesClassName": "b"})
    );
    assert_eq!(begin["conditions"][0]["type"], MODIFYING);
    assert_eq!(
        begin["conditions"][0]["message"],
        "Modifying the volume to \"b\" is in progress."
    );

    let infeasible = json!({"status": "Infeasible", "targetVolumeAttributesClassName": "b"});
    let running = "is still in progress";
    for (error, expected, holds) in [
        (Status::invalid_argument("x"), infeasible, "failed"),
        (Status::internal("x"), Value::Null, "failed"),
        (Status::not_found("x"), Value::Null, "failed"),
        (Status::resource_exhausted("x"), Value::Null, running),
        (Status::cancelled("x"), Value::Null, running),
    ] {
        let code = code_name(error.code());
        let failure = Failure {
            call: "ControllerModifyVolume",
            status: error,
        };
        let failed = status(failure_patch(&begun, "b", &failure)).unwrap();
        assert_eq!(failed["modifyVolumeStatus"], expected, "{code}");
        assert_eq!(failed["conditions"][1]["reason"], code);
        assert_eq!(failed["conditions"][1]["message"], "x");
        let message = failed["conditions"][0]["message"].as_str().unwrap();
        assert!(message.contains(holds), "{code}: {message}");
    }

    let end = end_patch(&claim("b", "a", "InProgress b", true), "b").unwrap();
    assert_eq!(
        end,
        json!({
            "metadata": {"uid": "u"},
            "status": {
                "modifyVolumeStatus": null, "currentVolumeAttributesClassName": "b",
                "conditions": [{"$patch": "delete", "type": MODIFYING}],
            },
        })
    );
    let cancel = status(cancel_patch(&claim("", "a", "Infeasible b", true))).unwrap();
    assert_eq!(
        cancel,
        json!({"conditions": [{"$patch": "delete", "type": MODIFYING}]})
    );
}

#[test]
fn secrets() {
    let volume = |annotations: Value| -> PersistentVolume {
        crate::testing::read(json!({
            "metadata": {"name": "pv", "annotations": annotations},
            "spec": {"csi": {
                "driver": "d", "volumeHandle": "h",
                "controllerExpandSecretRef": {"name": "expand", "namespace": "ns"},
            }},
        }))
    };
    let both = json!({MODIFY_SECRET_NAME: "modify", MODIFY_SECRET_NAMESPACE: "ns"});
    for (annotations, expected) in [
        (both, "modify"),
        (json!({MODIFY_SECRET_NAME: "modify"}), "expand"),
        (
            json!({MODIFY_SECRET_NAME: "", MODIFY_SECRET_NAMESPACE: ""}),
            "expand",
        ),
        (json!({}), "expand"),
    ] {
        let secret = secret_of(&volume(annotations)).unwrap();
        assert_eq!(secret.name.as_deref(), Some(expected));
    }
    assert_eq!(secret_of(&PersistentVolume::default()), None);
}

//! The CSIDriver object, against how the driver runs.

use k8s_openapi::api::storage::v1::CSIDriverSpec;

use super::{Part, driver_container, flag, join, known};
use crate::check::facts::Facts;
use crate::check::line::Line;

const APPLY: &str = "Run `kubectl hostloop install` again, which applies the object.";

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let object = match known("CSIDriver", &facts.csi_driver) {
        Ok(object) => object,
        Err(line) => return vec![line],
    };
    let Some(object) = object else {
        return vec![Line::failed(
            format!("There is no CSIDriver {}", facts.driver),
            "hostloop is not installed: kubectl hostloop install. If it has another name, set \
             --driver-name.",
        )];
    };
    join([
        Ok(vec![fields(&facts.driver, &object.spec)]),
        attach(facts, &object.spec),
    ])
}

fn has_mode(spec: &CSIDriverSpec, mode: &str) -> bool {
    spec.volume_lifecycle_modes
        .iter()
        .flatten()
        .any(|m| m == mode)
}

fn fields(driver: &str, spec: &CSIDriverSpec) -> Line {
    // Each field, whether it has its value, and what fails otherwise.
    let fields = [
        (
            "podInfoOnMount: true",
            spec.pod_info_on_mount == Some(true),
            "inline volumes fail",
        ),
        (
            "storageCapacity: true",
            spec.storage_capacity == Some(true),
            "the scheduler does not know which nodes have room",
        ),
        (
            "volumeLifecycleModes: Persistent",
            // The default of a CSIDriver without the field.
            has_mode(spec, "Persistent")
                || spec
                    .volume_lifecycle_modes
                    .iter()
                    .flatten()
                    .next()
                    .is_none(),
            "claims get no volumes",
        ),
        (
            "volumeLifecycleModes: Ephemeral",
            has_mode(spec, "Ephemeral"),
            "inline volumes fail",
        ),
        (
            "fsGroupPolicy: File",
            spec.fs_group_policy.as_deref() == Some("File"),
            "pods that are not root may be unable to write",
        ),
    ];
    let wrong: Vec<String> = fields
        .iter()
        .filter(|(_, right, _)| !right)
        .map(|(field, _, harm)| format!("{field} ({harm})"))
        .collect();
    if wrong.is_empty() {
        Line::ok(format!(
            "CSIDriver {driver} has the fields that the driver needs"
        ))
    } else {
        Line::failed(
            format!("CSIDriver {driver} lacks {}", wrong.join(", ")),
            APPLY,
        )
    }
}

/// `attachRequired` and the driver's flag must agree: with only the first, pods wait for an
/// attachment that nothing makes.
fn attach(facts: &Facts, spec: &CSIDriverSpec) -> Part {
    let sets = known("Attaching", &facts.daemon_sets)?;
    let required = spec.attach_required.unwrap_or(true);
    let pods = sets
        .iter()
        .filter_map(|set| set.spec.as_ref()?.template.spec.as_ref());
    let containers = pods.filter_map(driver_container);
    // The flag's default is true.
    let flags = containers.map(|c| flag(c, "enable-attach").is_none_or(|value| value != "false"));
    Ok(flags
        .take(1)
        .map(|enabled| match (required, enabled) {
            (true, true) => Line::ok("Volumes are attached, by CSIDriver and driver"),
            (false, false) => Line::ok("Volumes are not attached, by CSIDriver and driver"),
            (true, false) => Line::failed(
                "The CSIDriver has attachRequired: true, and the driver runs with \
                 --enable-attach=false",
                "Pods wait for attachments that nothing makes. Set both to the same value; \
                 attachRequired is immutable, so delete the CSIDriver first.",
            ),
            (false, true) => Line::warning(
                "The CSIDriver has attachRequired: false, and the driver runs with \
                 --enable-attach=true",
                "Volumes are not attached. Set both to the same value.",
            ),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::check::decide::testing::{good, marks, object};
    use crate::check::line::Mark::{self, *};

    fn spec(changes: Value) -> CSIDriverSpec {
        let mut spec = json!({
            "podInfoOnMount": true, "storageCapacity": true, "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"], "attachRequired": false,
        });
        json_patch::merge(&mut spec, &changes);
        object(spec)
    }

    #[rstest]
    #[case(json!({}), "")]
    #[case(json!({"podInfoOnMount": null}), "podInfoOnMount")]
    #[case(json!({"storageCapacity": false}), "storageCapacity")]
    #[case(json!({"fsGroupPolicy": "None"}), "fsGroupPolicy")]
    #[case(json!({"volumeLifecycleModes": ["Persistent"]}), "Ephemeral")]
    #[case(json!({"volumeLifecycleModes": ["Ephemeral"]}), "Persistent")]
    fn field(#[case] changes: Value, #[case] lacks: &str) {
        let line = fields("d", &spec(changes));
        assert_eq!(line.mark, if lacks.is_empty() { Passed } else { Failed });
        assert!(line.text.contains(lacks), "{line:?}");
    }

    #[rstest]
    #[case(json!(false), "--enable-attach=false", Passed)]
    #[case(json!(true), "--enable-attach=true", Passed)]
    #[case(json!(null), "--other", Passed)]
    #[case(json!(null), "--enable-attach=false", Failed)]
    #[case(json!(false), "--enable-attach", Warning)]
    fn attaching(#[case] required: Value, #[case] arg: &str, #[case] mark: Mark) {
        let mut facts = good();
        let set = json!({"spec": {"template": {"spec": {"containers": [{"args": ["run", arg]}]}}}});
        facts.daemon_sets = Ok(vec![object(set)]);
        let spec = spec(json!({"attachRequired": required}));
        assert_eq!(marks(&attach(&facts, &spec).unwrap()), [mark]);
    }

    #[test]
    fn a_missing_object_is_one_line() {
        let mut facts = good();
        facts.csi_driver = Ok(None);
        assert_eq!(marks(&lines(&facts)), [Failed]);
    }
}

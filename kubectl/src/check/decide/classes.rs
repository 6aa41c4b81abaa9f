//! The StorageClasses.

use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::known;
use crate::check::facts::Facts;
use crate::check::line::{Line, names};
use crate::manifests::DEFAULT_CLASS;

/// An older name of [`DEFAULT_CLASS`]. Kubernetes still reads it.
const DEFAULT_CLASS_BETA: &str = "storageclass.beta.kubernetes.io/is-default-class";

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    match known("StorageClasses", &facts.classes) {
        Ok(classes) => {
            let ours: Vec<&StorageClass> = classes
                .iter()
                .filter(|class| class.provisioner == facts.driver)
                .collect();
            let mut lines = vec![own(&ours, &facts.driver), default(classes)];
            lines.extend(immediate(&ours));
            lines
        }
        Err(line) => vec![line],
    }
}

fn name(class: &StorageClass) -> &str {
    class.metadata.name.as_deref().unwrap_or_default()
}

fn list(classes: &[&StorageClass]) -> String {
    names(classes.iter().map(|class| name(class)))
}

/// True if claims without a class get this one.
pub(in crate::check) fn is_default(class: &StorageClass) -> bool {
    let annotations = class.annotations();
    [DEFAULT_CLASS, DEFAULT_CLASS_BETA]
        .iter()
        .any(|key| annotations.get(*key).is_some_and(|value| value == "true"))
}

/// True if a claim gets a volume before it has a pod.
pub(in crate::check) fn is_immediate(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer")
}

fn own(ours: &[&StorageClass], driver: &str) -> Line {
    if ours.is_empty() {
        Line::failed(
            format!("No StorageClass has the provisioner {driver}"),
            "Claims can't ask for its volumes. Run `kubectl hostloop install` again.",
        )
    } else {
        Line::ok(format!("The driver's StorageClasses: {}", list(ours)))
    }
}

fn default(classes: &[StorageClass]) -> Line {
    let default: Vec<&StorageClass> = classes.iter().filter(|class| is_default(class)).collect();
    match default.as_slice() {
        [] => Line::ok("No StorageClass is the default: each claim names its class"),
        [one] => Line::ok(format!("One StorageClass is the default: {}", name(one))),
        several => Line::warning(
            format!(
                "{} StorageClasses are defaults: {}",
                several.len(),
                list(several)
            ),
            format!(
                "Kubernetes takes the newest. Keep one: kubectl annotate storageclass NAME \
                 {DEFAULT_CLASS}=false --overwrite"
            ),
        ),
    }
}

fn immediate(ours: &[&StorageClass]) -> Option<Line> {
    let immediate: Vec<&StorageClass> = ours
        .iter()
        .copied()
        .filter(|class| is_immediate(class))
        .collect();
    (!immediate.is_empty()).then(|| {
        Line::warning(
            format!(
                "Volumes are made before their pods are known: {}",
                list(&immediate)
            ),
            "A volume stays on its node, so its pods can run nowhere else. Use \
             volumeBindingMode: WaitForFirstConsumer unless a tool needs Immediate.",
        )
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::check::decide::testing::{good, marks, object};
    use crate::check::line::Mark::{self, *};

    fn class(name: &str, ours: bool, default: &str, mode: &str) -> StorageClass {
        object(json!({
            "metadata": {"name": name, "annotations": {DEFAULT_CLASS: default}},
            "provisioner": if ours { "hostloop.csi.dev" } else { "other" },
            "volumeBindingMode": mode,
        }))
    }

    const LATE: &str = "WaitForFirstConsumer";

    #[rstest]
    #[case::none(vec![], &[Failed, Passed])]
    #[case::not_ours(vec![class("a", false, "true", LATE)], &[Failed, Passed])]
    #[case::ours(vec![class("a", true, "", LATE)], &[Passed, Passed])]
    #[case::two_defaults(
        vec![class("a", true, "true", LATE), class("b", false, "true", LATE)],
        &[Passed, Warning]
    )]
    #[case::false_is_no_default(
        vec![class("a", true, "true", LATE), class("b", false, "false", LATE)],
        &[Passed, Passed]
    )]
    #[case::immediate(vec![class("a", true, "", "Immediate")], &[Passed, Passed, Warning])]
    #[case::others_may(
        vec![class("a", true, "", LATE), class("b", false, "", "Immediate")],
        &[Passed, Passed]
    )]
    fn cases(#[case] classes: Vec<StorageClass>, #[case] expected: &[Mark]) {
        let mut facts = good();
        facts.classes = Ok(classes);
        assert_eq!(marks(&lines(&facts)), expected);
    }
}

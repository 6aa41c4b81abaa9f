//! What the live check will do: names, class, image.

use std::time::Duration;

use k8s_openapi::api::storage::v1::StorageClass;

use crate::check::decide::{
    driver_container, has_snapshots, is_default, is_immediate, is_ready, pods_by_node,
};
use crate::check::facts::{Fact, Facts, Unknown};
use crate::check::line::Line;
use crate::manifests::Class;

/// What a person chose.
pub(in crate::check) struct LiveOptions {
    /// The namespace of the objects.
    pub(in crate::check) namespace: String,
    /// The StorageClass, if the person named one.
    pub(in crate::check) class: Option<String>,
    /// How long each step may take.
    pub(in crate::check) timeout: Duration,
    /// A new name for the objects.
    pub(in crate::check) name: String,
}

/// A live check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::check) struct LivePlan {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) class: String,
    /// `None` leaves out the snapshot.
    pub(super) snapshot_class: Option<String>,
    pub(super) image: String,
    pub(super) pull_policy: String,
    /// The program in the image; the image's own entry point if it is `None`.
    pub(super) program: Option<String>,
    pub(super) timeout: Duration,
    /// Why there is no snapshot.
    pub(super) left_out: Option<String>,
}

impl LivePlan {
    /// A line about what the check leaves out.
    pub(in crate::check) fn left_out(&self) -> Option<Line> {
        self.left_out.as_ref().map(Line::skipped)
    }
}

/// Plans the check, or says why it can't run.
pub(in crate::check) fn plan(facts: &Facts, choice: LiveOptions) -> Result<LivePlan, Line> {
    let pod = pods_by_node(needed(&facts.pods)?)
        .into_values()
        .find(|pod| is_ready(pod));
    let container = pod.and_then(|pod| driver_container(pod.spec.as_ref()?));
    let Some(container) = container else {
        return Err(Line::failed(
            "The live check needs a pod of hostloop that is ready",
            "Repair what failed above first.",
        ));
    };
    let (snapshot_class, left_out) = match snapshot_class(facts) {
        Ok(class) => (Some(class), None),
        Err(why) => (None, Some(format!("The snapshot is left out: {why}"))),
    };
    Ok(LivePlan {
        class: class(facts, choice.class.as_deref())?,
        snapshot_class,
        image: container.image.clone().unwrap_or_default(),
        // The image is on every node that has a pod of hostloop.
        pull_policy: match container.image_pull_policy.as_deref() {
            Some("Never") => "Never",
            _ => "IfNotPresent",
        }
        .to_owned(),
        program: container.command.iter().flatten().next().cloned(),
        name: choice.name,
        namespace: choice.namespace,
        timeout: choice.timeout,
        left_out,
    })
}

/// A fact that the check can't do without.
fn needed<T>(fact: &Fact<T>) -> Result<&T, Line> {
    fact.as_ref().map_err(|why| {
        let advice = match why {
            Unknown::Forbidden(_) => "Ask for this right, or choose another --context.",
            _ => "Repair what failed above first.",
        };
        Line::failed(format!("The live check can't begin: {why}"), advice)
    })
}

/// The class of the claims: the one that the person named, or the driver's best.
fn class(facts: &Facts, named: Option<&str>) -> Result<String, Line> {
    let classes = needed(&facts.classes)?;
    let ours = classes
        .iter()
        .filter(|class| class.provisioner == facts.driver);
    if let Some(named) = named {
        return match ours.map(name_of).find(|class| class == named) {
            Some(class) => Ok(class),
            None => Err(Line::failed(
                format!("The driver has no StorageClass {named}"),
                "Choose another one with --class.",
            )),
        };
    }
    // A volume that is retained would be left behind.
    ours.filter(|class| class.reclaim_policy.as_deref() != Some("Retain"))
        .min_by_key(|class| {
            (
                is_thick(class),
                !is_default(class),
                is_immediate(class),
                name_of(class) != Class::Ext4.name(),
                name_of(class),
            )
        })
        .map(name_of)
        .ok_or_else(|| {
            Line::failed(
                "The live check needs a StorageClass of the driver with reclaimPolicy Delete",
                "Name one with --class. With reclaimPolicy Retain, delete its volumes yourself.",
            )
        })
}

fn name_of(class: &StorageClass) -> String {
    class.metadata.name.clone().unwrap_or_default()
}

fn is_thick(class: &StorageClass) -> bool {
    let parameters = class.parameters.as_ref();
    parameters
        .and_then(|p| p.get("provisioning"))
        .is_some_and(|value| value == "thick")
}

/// The class of the snapshot, or why there is none.
fn snapshot_class(facts: &Facts) -> Result<String, String> {
    if !has_snapshots(facts.served.as_ref().map_err(ToString::to_string)?) {
        return Err("the server does not serve snapshots".to_owned());
    }
    let classes = facts
        .snapshot_classes
        .as_ref()
        .map_err(ToString::to_string)?;
    let ours = classes.iter().filter(|class| class.driver == facts.driver);
    let mut names = ours.filter_map(|class| {
        // A snapshot that is retained would be left behind.
        use hostloop_api_objects::snapshots::DeletionPolicy::Delete;
        (class.deletion_policy == Delete).then(|| class.metadata.name.clone())?
    });
    names
        .next()
        .ok_or_else(|| "the driver has no VolumeSnapshotClass that deletes".to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::check::decide::testing::{DRIVER, good, object};

    fn choice(class: Option<&str>) -> LiveOptions {
        LiveOptions {
            namespace: "demo".into(),
            class: class.map(str::to_owned),
            timeout: Duration::from_secs(1),
            name: "hostloop-check-x".into(),
        }
    }

    fn storage_class(name: &str, changes: Value) -> StorageClass {
        let mut class = json!({
            "metadata": {"name": name}, "provisioner": DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        json_patch::merge(&mut class, &changes);
        object(class)
    }

    #[rstest]
    #[case::by_name(json!({}), json!({}), None, Some("a"))]
    #[case::named(json!({}), json!({}), Some("b"), Some("b"))]
    #[case::unknown(json!({}), json!({}), Some("c"), None)]
    #[case::not_thick(json!({"parameters": {"provisioning": "thick"}}), json!({}), None, Some("b"))]
    #[case::not_retained(json!({"reclaimPolicy": "Retain"}), json!({}), None, Some("b"))]
    #[case::not_immediate(json!({"volumeBindingMode": "Immediate"}), json!({}), None, Some("b"))]
    #[case::default(json!({}), json!({"metadata": {"name": "b", "annotations":
        {"storageclass.kubernetes.io/is-default-class": "true"}}}), None, Some("b"))]
    #[case::usual(json!({}), json!({"metadata": {"name": "hostloop-ext4"}}), None, Some("hostloop-ext4"))]
    #[case::ours(json!({"provisioner": "other"}), json!({}), None, Some("b"))]
    #[case::none(json!({"provisioner": "other"}), json!({"reclaimPolicy": "Retain"}), None, None)]
    fn classes(
        #[case] a: Value,
        #[case] b: Value,
        #[case] named: Option<&str>,
        #[case] expected: Option<&str>,
    ) {
        let mut facts = good();
        facts.classes = Ok(vec![storage_class("a", a), storage_class("b", b)]);
        assert_eq!(
            plan(&facts, choice(named))
                .ok()
                .map(|plan| plan.class)
                .as_deref(),
            expected
        );
    }

    #[test]
    fn the_pods_have_the_drivers_image() {
        let mut facts = good();
        let good = plan(&facts, choice(None)).unwrap();
        assert_eq!(
            good.image,
            concat!("hostloop.csi.dev/hostloop:", env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(good.pull_policy, "IfNotPresent");
        assert_eq!(good.snapshot_class.as_deref(), Some("hostloop"));
        assert_eq!(good.left_out(), None);

        facts.served = Ok(Default::default());
        let without = plan(&facts, choice(None)).unwrap();
        assert_eq!(without.snapshot_class, None);
        assert!(without.left_out().is_some());

        facts.pods = Ok(vec![]);
        assert!(plan(&facts, choice(None)).is_err());
    }

    #[test]
    fn a_missing_right_is_named() {
        fn no<T>(right: &str) -> Fact<T> {
            Err(Unknown::Forbidden(right.to_owned()))
        }
        let said = |facts: &Facts, class| plan(facts, choice(class)).unwrap_err().text;
        let begin = "The live check can't begin: you may not";
        let mut facts = good();
        facts.classes = no("list classes");
        assert_eq!(said(&facts, None), format!("{begin} list classes"));
        assert_eq!(
            said(&facts, Some("hostloop-ext4")),
            format!("{begin} list classes")
        );
        facts.pods = no("list pods");
        assert_eq!(said(&facts, None), format!("{begin} list pods"));

        let mut facts = good();
        facts.served = no("get /apis");
        let left_out = plan(&facts, choice(None)).unwrap().left_out().unwrap();
        assert_eq!(
            left_out.text,
            "The snapshot is left out: you may not get /apis"
        );
    }
}

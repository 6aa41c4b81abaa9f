//! A claim has no class of attributes with a parameter that the drivers do not take. Users learn of a
//! refusal, and of nothing else that the driver makes of their parameters.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{name, text, uid};
use crate::oracle::objects::state;
use crate::oracle::ownership::is_named_after_claim;
use crate::trace;
use crate::users::OF_KUBERNETES;

/// The names of the classes of attributes that ever had only parameters which the drivers take.
#[derive(Default)]
pub(super) struct RightClasses(BTreeSet<String>);

impl RightClasses {
    /// Checks the claims of volumes that hostloop has made.
    pub(super) fn check(
        &mut self,
        cluster: &Cluster,
        volumes: &[Arc<Value>],
        claims: &[Arc<Value>],
    ) {
        let Some(machine) = cluster.machines.first() else {
            return;
        };
        let classes = cluster.api.shared("volumeattributesclasses");
        self.note(&classes, machine.mutable_parameters());
        let made = volumes.iter().filter(|volume| is_named_after_claim(volume));
        let made: BTreeSet<&str> = made
            .map(|volume| text(volume, "/spec/claimRef/uid"))
            .collect();
        for claim in claims.iter().filter(|claim| made.contains(uid(claim))) {
            if let Some(class) = self.wrong(claim) {
                trace::violation(format!(
                    "not accepted: claim {} has the attributes {class}, with a parameter that the \
                     drivers do not take: {}",
                    name(claim),
                    state(claim)
                ));
            }
        }
    }

    fn note(&mut self, classes: &[Arc<Value>], taken: &[&str]) {
        let right = classes.iter().filter(|class| has_only(class, taken));
        self.0.extend(right.map(|class| name(class).to_owned()));
    }

    /// The class of a claim, if it was never right.
    fn wrong<'a>(&self, claim: &'a Value) -> Option<&'a str> {
        let class = text(claim, "/status/currentVolumeAttributesClassName");
        (!class.is_empty() && !self.0.contains(class)).then_some(class)
    }
}

/// True if a class has no parameters but these, and those that Kubernetes gives a meaning to.
pub(super) fn has_only(class: &Value, known: &[&str]) -> bool {
    let mut parameters = class["parameters"].as_object().into_iter().flatten();
    parameters.all(|(key, _)| key.starts_with(OF_KUBERNETES) || known.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::none("", None)]
    #[case::right("direct", None)]
    #[case::once_right("changed", None)]
    #[case::wrong("thick", Some("thick"))]
    #[case::partly_wrong("both", Some("both"))]
    fn claims_have_right_classes(#[case] class: &str, #[case] expected: Option<&str>) {
        let class_of = |name: &str, parameters: Value| {
            Arc::new(json!({"metadata": {"name": name}, "parameters": parameters}))
        };
        let direct = json!({"directIO": "true", "csi.storage.k8s.io/x": "y"});
        let thick = json!({"provisioning": "thick"});
        let mut right = RightClasses::default();
        for changed in [&direct, &thick] {
            let classes = [
                class_of("direct", direct.clone()),
                class_of("thick", thick.clone()),
                class_of("both", json!({"directIO": "true", "provisioning": "thin"})),
                class_of("changed", changed.clone()),
            ];
            right.note(&classes, &["directIO"]);
        }
        let claim = json!({"status": {"currentVolumeAttributesClassName": class}});
        assert_eq!(right.wrong(&claim), expected);
    }
}

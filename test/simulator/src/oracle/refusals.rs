//! No claim is refused as invalid if its classes are right. Users change what an event tells them to
//! change, so nothing else notices a refusal of what the manual allows.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::foreign::is_foreign;
use crate::machine::limits::POOL;
use crate::model::view::{is_deleting, items, name, text, uid};
use crate::oracle::attributes::has_only;
use crate::oracle::hindered::Hindered;
use crate::oracle::objects::{Objects, has_source, state, volume_of};
use crate::trace;
use crate::users::BAD_OPTION;

/// The code of a driver that refuses a request as wrong in itself.
const INVALID: &str = "InvalidArgument";
/// Parameters of volumes that users and administrators of the simulator have from the manual.
const OF_VOLUMES: [&str; 2] = ["pool", "provisioning"];
/// The same of attributes. One that makes volumes thick is refused in these words where there is no
/// room.
const OF_ATTRIBUTES: [&str; 2] = ["directIO", "readAheadKiB"];

/// Classes that were ever wrong, by name, and the claims that ever named one, by UID. What is said
/// of a claim stays.
#[derive(Default)]
pub(super) struct Refusals {
    classes: BTreeSet<String>,
    attributes: BTreeSet<String>,
    claims: BTreeSet<String>,
}

impl Refusals {
    /// Notes classes and claims as they are now.
    pub(super) fn note(&mut self, cluster: &Cluster, claims: &[Arc<Value>]) {
        let classes = cluster.api.shared("storageclasses");
        self.classes.extend(wrong(&classes, &OF_VOLUMES));
        let attributes = cluster.api.shared("volumeattributesclasses");
        self.attributes.extend(wrong(&attributes, &OF_ATTRIBUTES));
        for claim in claims {
            let class = text(claim, "/spec/storageClassName");
            let attributes = text(claim, "/spec/volumeAttributesClassName");
            if self.classes.contains(class) || self.attributes.contains(attributes) {
                self.claims.insert(uid(claim).to_owned());
            }
        }
    }

    /// Checks what is said of claims. A copy may be refused for its source, and a volume for the
    /// mount options that its users gave it.
    pub(super) fn check(&self, cluster: &Cluster, objects: &Objects, hindered: &Hindered) {
        let right = objects.claims.iter().filter(|claim| {
            !is_deleting(claim) && !has_source(claim) && !self.claims.contains(uid(claim))
        });
        for claim in right {
            let said = objects.reasons(claim);
            let Some(said) = said.iter().find(|said| said.contains(INVALID)) else {
                continue;
            };
            let volume = volume_of(cluster, claim);
            if volume.is_some_and(|volume| hindered.has(cluster, &volume)) {
                continue;
            }
            trace::violation(format!(
                "refused as invalid: claim {} with right classes: {said}; {}",
                name(claim),
                state(claim)
            ));
        }
    }
}

/// The names of the classes with other parameters than these, or with options that no driver may
/// mount a volume with.
fn wrong(classes: &[Arc<Value>], known: &[&'static str]) -> impl Iterator<Item = String> {
    let wrong = classes
        .iter()
        .filter(move |class| !is_foreign(class) && !is_right(class, known));
    wrong.map(|class| name(class).to_owned())
}

fn is_right(class: &Value, known: &[&'static str]) -> bool {
    let mut options = items(class, "/mountOptions").filter_map(Value::as_str);
    let has_pool = ["", POOL].contains(&text(class, "/parameters/pool"));
    has_only(class, known) && has_pool && options.all(|option| option != BAD_OPTION)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::of_a_filesystem(
        json!({"parameters": {"csi.storage.k8s.io/fstype": "xfs"}}), &OF_VOLUMES, true)]
    #[case::thick(json!({"parameters": {"provisioning": "thick"}}), &OF_VOLUMES, true)]
    #[case::plain(json!({}), &OF_VOLUMES, true)]
    #[case::of_a_pool(json!({"parameters": {"pool": "pool"}}), &OF_VOLUMES, true)]
    #[case::of_no_pool(json!({"parameters": {"pool": "nowhere"}}), &OF_VOLUMES, false)]
    #[case::unknown(json!({"parameters": {"unknown": "parameter"}}), &OF_VOLUMES, false)]
    #[case::of_attributes(json!({"parameters": {"directIO": "true"}}), &OF_VOLUMES, false)]
    #[case::attributes(
        json!({"parameters": {"directIO": "true", "readAheadKiB": "8"}}), &OF_ATTRIBUTES, true)]
    #[case::thick_attributes(json!({"parameters": {"provisioning": "thick"}}), &OF_ATTRIBUTES, false)]
    #[case::option(json!({"mountOptions": ["noatime"]}), &OF_VOLUMES, true)]
    #[case::refused_option(
        json!({"mountOptions": ["noatime", "errors=panic"]}), &OF_VOLUMES, false)]
    fn classes_are_right(
        #[case] class: Value,
        #[case] known: &[&'static str],
        #[case] expected: bool,
    ) {
        assert_eq!(is_right(&class, known), expected);
    }
}

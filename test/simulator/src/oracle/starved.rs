//! No namespace keeps another one's calls waiting for long.

use crate::cluster::NAMESPACE;
use crate::model::view::{name, namespace};
use crate::oracle::objects::Objects;
use crate::{messages, trace};

/// Checks that no claim of the modest namespace has waited for a thread that is not for copies.
/// What takes these threads is short, whatever another namespace wants.
pub(super) fn check(objects: &Objects) {
    let modest = objects.claims.iter();
    for claim in modest.filter(|claim| namespace(claim) == NAMESPACE) {
        let reasons = objects.reasons(claim);
        if let Some(why) = reasons.iter().find(|why| messages::waits_for_changes(why)) {
            trace::violation(format!("starved: claim {}: {why}", name(claim)));
        }
    }
}

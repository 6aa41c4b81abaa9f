//! Emits the events about the health of volumes and storage.

use k8s_openapi::api::core::v1::ObjectReference;

use super::Watcher;
use super::decide::HealthChange;
use crate::client::EventKind;

/// The words of the events about one kind of condition.
pub(super) struct Words {
    noun: &'static str,
    /// The reason of the event that something is wrong.
    abnormal: &'static str,
    /// The reason of the event that nothing is wrong any more.
    normal: &'static str,
}

pub(super) const VOLUME: Words = Words {
    noun: "volume",
    abnormal: "VolumeConditionAbnormal",
    normal: "VolumeConditionNormal",
};

pub(super) const STORAGE: Words = Words {
    noun: "storage",
    abnormal: "StorageConditionAbnormal",
    normal: "StorageConditionNormal",
};

impl Watcher {
    /// Emits the event about a change.
    pub(super) fn emit(&self, about: ObjectReference, words: &Words, change: HealthChange) {
        let events = &self.context.events;
        match change {
            HealthChange::Abnormal(message) => {
                events.emit(about, EventKind::Warning, words.abnormal, message);
            }
            HealthChange::Normal => {
                let message = format!("The {} has no problem any more", words.noun);
                events.emit(about, EventKind::Normal, words.normal, message);
            }
        }
    }
}

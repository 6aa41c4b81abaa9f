//! The kinds that an API server may lack, because it is older or has no CustomResourceDefinitions
//! for them.
//!
//! The process asks for them at its start. What needs a missing kind stays off, one line of the log
//! says so, and nothing watches that kind. The process asks again now and then, because an upgrade
//! or an installation adds kinds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::store::fraction;
use crate::client::{ApiError, Kube, Resource};
use crate::queue::Backoff;

/// The wait before the API server is asked again. It doubles up to the maximum: what is installed
/// together with this process is found soon, and later questions cost little.
const AGAIN: Backoff = Backoff {
    start: Duration::from_secs(1),
    max: Duration::from_secs(30),
};

/// Kinds that belong together, and what needs them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Feature {
    /// The group and version of the kinds.
    api: &'static str,
    /// The plurals of the kinds.
    kinds: &'static [&'static str],
    /// What needs them.
    name: &'static str,
    /// How a cluster gets them.
    from: &'static str,
}

/// Modifying volumes.
pub(crate) const MODIFYING: Feature = Feature {
    api: "storage.k8s.io/v1",
    kinds: &["volumeattributesclasses"],
    name: "modifying volumes",
    from: "Kubernetes 1.34 and newer have it",
};

/// Snapshots.
pub(crate) const SNAPSHOTS: Feature = Feature {
    api: "snapshot.storage.k8s.io/v1",
    kinds: &[
        "volumesnapshotclasses",
        "volumesnapshotcontents",
        "volumesnapshots",
    ],
    name: "snapshots",
    from: "their CustomResourceDefinitions bring it",
};

/// Group snapshots.
pub(crate) const GROUPS: Feature = Feature {
    api: "groupsnapshot.storage.k8s.io/v1",
    kinds: &[
        "volumegroupsnapshotclasses",
        "volumegroupsnapshotcontents",
        "volumegroupsnapshots",
    ],
    name: "group snapshots",
    from: "their CustomResourceDefinitions bring it",
};

impl Feature {
    /// The kinds that are not in this list.
    fn missing(&self, served: &BTreeSet<String>) -> Missing {
        self.kinds
            .iter()
            .copied()
            .filter(|kind| !served.contains(*kind))
            .collect()
    }

    /// A part of the line that says what is off.
    fn without(&self, missing: &Missing) -> String {
        let kinds: Vec<_> = missing.iter().copied().collect();
        format!(
            "{} (no {} in {}; {})",
            self.name,
            kinds.join(", "),
            self.api,
            self.from
        )
    }
}

/// Plurals of kinds that the API server does not serve.
type Missing = BTreeSet<&'static str>;

/// The missing kinds of each feature; `None` before the API server has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownFeatures(Vec<(&'static Feature, Option<Missing>)>);

impl KnownFeatures {
    /// Whether the API server serves a kind; `None` if it has not answered yet. Kinds of no feature
    /// are always served.
    fn serves(&self, api: &str, plural: &str) -> Option<bool> {
        let found = self
            .0
            .iter()
            .find(|(feature, _)| feature.api == api && feature.kinds.contains(&plural));
        match found {
            None => Some(true),
            Some((_, missing)) => missing.as_ref().map(|missing| !missing.contains(plural)),
        }
    }

    /// True if the API server serves all kinds, so that there is nothing left to ask.
    fn is_complete(&self) -> bool {
        self.0
            .iter()
            .all(|(_, missing)| missing.as_ref().is_some_and(Missing::is_empty))
    }

    /// Lines for the log about what has changed: what is off, and what is on by now.
    fn news(&self, before: &KnownFeatures) -> Vec<String> {
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for ((feature, now), (_, before)) in self.0.iter().zip(&before.0) {
            match (before, now) {
                (before, Some(now)) if !now.is_empty() && before.as_ref() != Some(now) => {
                    off.push(feature.without(now));
                }
                (Some(before), Some(now)) if !before.is_empty() && now.is_empty() => {
                    on.push(feature.name);
                }
                _ => {}
            }
        }
        let mut lines = Vec::new();
        if !off.is_empty() {
            let off = off.join("; ");
            lines.push(format!("off, because the API server lacks kinds: {off}"));
        }
        if !on.is_empty() {
            let on = on.join(", ");
            lines.push(format!(
                "on, because the API server has their kinds by now: {on}"
            ));
        }
        lines
    }
}

/// Which optional kinds the API server serves. Clones share it.
#[derive(Clone, Debug)]
pub struct Served {
    known: Arc<watch::Sender<KnownFeatures>>,
    again: Arc<Notify>,
}

impl Default for Served {
    /// All kinds count as served.
    fn default() -> Self {
        Served::of(&[])
    }
}

impl Served {
    /// The kinds of these features are unknown until [`Served::follow`] has asked for them. All
    /// others count as served.
    pub(crate) fn of(features: &[&'static Feature]) -> Self {
        let known = features.iter().map(|feature| (*feature, None)).collect();
        Served {
            known: Arc::new(watch::Sender::new(KnownFeatures(known))),
            again: Arc::default(),
        }
    }

    /// Waits until the API server serves the kind. Calls `lacking` first if it does not.
    pub(crate) async fn wait<K: Resource>(&self, lacking: impl FnOnce()) {
        let (api, plural) = (K::api_version(&()), K::plural(&()));
        let mut known = self.known.subscribe();
        let answered = known
            .wait_for(|known| known.serves(&api, &plural).is_some())
            .await;
        // The sender lives as long as `self`.
        if answered.is_ok_and(|known| known.serves(&api, &plural) == Some(false)) {
            lacking();
        }
        let _ = known
            .wait_for(|known| known.serves(&api, &plural) == Some(true))
            .await;
    }

    /// Asks again at once, after this process has added kinds.
    pub(crate) fn ask_again(&self) {
        self.again.notify_one();
    }

    /// Asks the API server until it serves all kinds.
    pub(crate) async fn follow(&self, kube: &Kube) {
        let mut asked = 0;
        while !self.known.borrow().is_complete() {
            self.ask(kube).await;
            asked += 1;
            let wait = AGAIN.delay(asked).mul_f64(0.5 + fraction() / 2.0);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.again.notified() => asked = 0,
            }
        }
    }

    /// Asks for all kinds that are not known to be served.
    async fn ask(&self, kube: &Kube) {
        let before = self.known.borrow().clone();
        let mut now = before.clone();
        for (feature, missing) in &mut now.0 {
            if missing.as_ref().is_some_and(Missing::is_empty) {
                continue;
            }
            match kube.served(feature.api).await {
                Ok(served) => *missing = Some(feature.missing(&served)),
                // An account without the right to ask finds out when it lists the kinds.
                Err(ApiError::Rejected { .. }) => *missing = Some(Missing::new()),
                Err(error) => tracing::warn!(%error, "cannot read which kinds the API server has"),
            }
        }
        for line in now.news(&before) {
            tracing::info!("{line}");
        }
        self.known.send_replace(now);
    }
}

#[cfg(test)]
mod tests;

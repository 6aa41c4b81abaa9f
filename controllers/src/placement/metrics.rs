//! Metrics of placement.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Result of looking for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AssignmentOutcome {
    /// A node was selected.
    Assigned,
    /// The source's node was selected instead of another one.
    Moved,
    /// The claim had changed in the meantime, so the API server rejected the write.
    Conflict,
    /// The write failed for another reason.
    Failed,
    /// No node fits.
    Nowhere,
    /// The source can't be reached.
    Blocked,
    /// The source is not known yet.
    Waiting,
}

impl AssignmentOutcome {
    fn word(self) -> &'static str {
        match self {
            AssignmentOutcome::Assigned => "assigned",
            AssignmentOutcome::Moved => "moved",
            AssignmentOutcome::Conflict => "conflict",
            AssignmentOutcome::Failed => "failed",
            AssignmentOutcome::Nowhere => "nowhere",
            AssignmentOutcome::Blocked => "blocked",
            AssignmentOutcome::Waiting => "waiting",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WrittenLabel {
    kind: String,
    result: &'static str,
}

/// Counters of assignments and labels. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    assignments: Family<[(&'static str, &'static str); 1], Counter>,
    labels: Family<WrittenLabel, Counter>,
}

impl Metrics {
    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "hostloop_assignments",
            "Searches of the leader for a claim's node, by outcome",
            self.assignments.clone(),
        );
        registry.register(
            "hostloop_node_labels",
            "Node labels that the leader wrote to objects, by kind and result",
            self.labels.clone(),
        );
    }

    /// Gives each metric a sample: the reference shows its labels.
    #[cfg(test)]
    pub(crate) fn sample(&self) {
        self.assigned(AssignmentOutcome::Assigned);
        self.labelled("PersistentVolume", "ok");
    }

    pub(super) fn assigned(&self, outcome: AssignmentOutcome) {
        self.assignments
            .get_or_create(&[("outcome", outcome.word())])
            .inc();
    }

    pub(super) fn labelled(&self, kind: &str, result: &'static str) {
        let kind = kind.to_owned();
        self.labels
            .get_or_create(&WrittenLabel { kind, result })
            .inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.assigned(AssignmentOutcome::Assigned);
        metrics.assigned(AssignmentOutcome::Conflict);
        metrics.labelled("PersistentVolume", "ok");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("into a string");
        for line in [
            r#"hostloop_assignments_total{outcome="assigned"} 1"#,
            r#"hostloop_assignments_total{outcome="conflict"} 1"#,
            r#"hostloop_node_labels_total{kind="PersistentVolume",result="ok"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\nin\n{text}");
        }
    }
}

//! Which log lines concern a claim.

use hostloop_api_objects::snapshots::{VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotContent};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::log_line::LogLine;
use super::volume_objects::{bound_volume, handle};

/// A claim, by all names under which the log has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    /// The claim's namespace.
    pub(super) namespace: String,
    /// The claim's name. A snapshot alone has none.
    pub(super) claim: String,
    /// UID, PersistentVolume, volume ID, and the same of its snapshots.
    ids: Vec<String>,
}

impl Subject {
    /// A claim of which only the name is known.
    pub(super) fn named(namespace: &str, claim: &str) -> Subject {
        Subject {
            namespace: namespace.to_owned(),
            claim: claim.to_owned(),
            ids: Vec::new(),
        }
    }

    /// Adds the names of the claim's objects.
    pub(super) fn with_claim(mut self, claim: &PersistentVolumeClaim) -> Subject {
        self.add(claim.metadata.uid.as_deref());
        self.add(bound_volume(claim));
        self
    }

    /// Adds the volume's ID.
    pub(super) fn with_volume(mut self, volume: &PersistentVolume, driver: &str) -> Subject {
        self.add(volume.metadata.name.as_deref());
        self.add(handle(volume, driver));
        self
    }

    /// Adds the handle of an inline volume.
    pub(super) fn with_handle(mut self, handle: &str) -> Subject {
        self.add(Some(handle));
        self
    }

    /// Adds a snapshot of the claim. The call that takes a snapshot has the snapshot's UID in its
    /// name.
    pub(super) fn with_snapshot(
        mut self,
        snapshot: &VolumeSnapshot,
        content: Option<&VolumeSnapshotContent>,
    ) -> Subject {
        self.add(snapshot.metadata.uid.as_deref());
        let status = content.and_then(|content| content.status.as_ref());
        self.add(status.and_then(|status| status.snapshot_handle.as_deref()));
        self
    }

    /// Adds a group snapshot. The call that takes it has its UID in its name.
    pub(super) fn with_group(mut self, group: &VolumeGroupSnapshot) -> Subject {
        self.add(group.metadata.uid.as_deref());
        self
    }

    /// True if no line can concern it.
    pub(super) fn is_empty(&self) -> bool {
        self.claim.is_empty() && self.ids.is_empty()
    }

    fn add(&mut self, id: Option<&str>) {
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            self.ids.push(id.to_owned());
        }
    }

    /// True if the line concerns the claim. `line` is the same as `text`, if the text has the
    /// driver's format.
    pub(super) fn concerns(&self, text: &str, line: Option<&LogLine>) -> bool {
        let named = (!self.claim.is_empty()).then(|| format!("{}/{}", self.namespace, self.claim));
        self.ids
            .iter()
            .chain(&named)
            .any(|name| contains_name(text, name))
            || line.is_some_and(|line| self.has_fields(line))
    }

    /// True if the fields of a line name the claim and its namespace.
    fn has_fields(&self, line: &LogLine) -> bool {
        line.field("namespace") == Some(&self.namespace)
            && (self.is_claim(line.field("claim"))
                || line.field("kind") == Some("PersistentVolumeClaim")
                    && self.is_claim(line.field("name")))
    }

    fn is_claim(&self, name: Option<&str>) -> bool {
        name.is_some_and(|name| !name.is_empty() && name == self.claim)
    }
}

/// True for the characters of names and paths.
fn is_in_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '/')
}

/// True if a text contains a name as a whole: not as part of a longer name or path. A UID is also
/// found after a prefix, as in `hostloop-UID`.
fn contains_name(text: &str, name: &str) -> bool {
    let is_uid = uuid::Uuid::try_parse(name).is_ok();
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let mut after = text[at + name.len()..].chars();
        let starts = match before {
            None => true,
            Some('-') if is_uid => true,
            Some('.') => false,
            Some(c) => !is_in_name(c),
        };
        let ends = match after.next() {
            None => true,
            // The end of a sentence, or a longer name.
            Some('.') => !after.next().is_some_and(is_in_name),
            Some(c) => !is_in_name(c),
        };
        starts && ends
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::test_objects::read;

    const UID: &str = "9b1f3c52-4d0e-4c57-9d3f-0a6b1c2d3e4f";

    fn subject() -> Subject {
        let claim = json!({"metadata": {"uid": UID}, "spec": {"volumeName": "pv-1"}});
        let volume = json!({
            "metadata": {"name": "pv-1"},
            "spec": {"csi": {"driver": "d", "volumeHandle": "vol-a-b"}},
        });
        let snapshot = json!({
            "metadata": {"name": "s", "uid": "3b1f3c52-4d0e-4c57-9d3f-0a6b1c2d3e4f"},
            "spec": {"source": {}},
        });
        Subject::named("demo", "data")
            .with_claim(&read(claim))
            .with_volume(&read(volume), "d")
            .with_snapshot(&read(snapshot), None)
    }

    #[test]
    fn lines_that_concern_a_claim() {
        for (rest, concerns) in [
            (r#"call about="vol-a-b""#, true),
            (r#"call about="vol-a-b2""#, false),
            (r#"call about="vol-a-b.""#, true),
            (r#"call about="vol-a-b.c""#, false),
            (r#"call about="xvol-a-b""#, false),
            ("mounted /k/vol-a-b/globalmount", false),
            ("volume pv-1: late", true),
            ("volume pv-10: late", false),
            ("volume my-pv-1: late", false),
            (&format!(r#"call about="hostloop-{UID}""#), true),
            (&format!("claim {UID}"), true),
            (&format!("x{UID}"), false),
            ("snapshot-3b1f3c52-4d0e-4c57-9d3f-0a6b1c2d3e4f taken", true),
            ("assigned demo/data to n1", true),
            ("assigned demo/data.", true),
            ("assigned demo/data-2 to n1", false),
            ("assigned other-demo/data to n1", false),
            (r#"failed namespace="demo" claim="data""#, true),
            (r#"assigned claim=data namespace="demo" node="n1""#, true),
            (r#"failed namespace="other" claim="data""#, false),
            (r#"failed namespace="demo" claim="logs""#, false),
            (
                r#"labelled kind=PersistentVolumeClaim namespace="demo" name="data""#,
                true,
            ),
            (r#"labelled kind=Pod namespace="demo" name="data""#, false),
            ("nothing of it: data, demo", false),
        ] {
            let text = format!("2026-01-02T03:04:05Z  INFO h: {rest}");
            let line = LogLine::parse(&text);
            assert!(line.is_some(), "{text}");
            assert_eq!(subject().concerns(&text, line.as_ref()), concerns, "{text}");
        }
        assert!(subject().concerns("panic at vol-a-b", None));
        let line = LogLine::parse("2026-01-02T03:04:05Z  INFO h: m namespace= claim= /");
        assert!(!Subject::default().concerns("/", line.as_ref()));
    }
}

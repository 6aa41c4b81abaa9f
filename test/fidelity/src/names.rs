//! Names of what programs have made, which differ from run to run. Here each is named by what it
//! belongs to.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::FoundObjects;

/// The readable names of volumes, contents of snapshots and records, by their own names or IDs.
#[derive(Clone, Debug, Default)]
pub struct Names(BTreeMap<String, String>);

/// An object or record that needs a name. Of those of one base, the order of their creation counts.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Nameless {
    base: String,
    created: String,
    raw: String,
}

fn text(field: &Value) -> String {
    field.as_str().unwrap_or_default().to_owned()
}

impl Nameless {
    fn object(object: &Value, base: String) -> Nameless {
        let metadata = &object["metadata"];
        Nameless {
            base,
            created: text(&metadata["creationTimestamp"]),
            raw: text(&metadata["name"]),
        }
    }

    fn record(record: &Value, base: String) -> Nameless {
        Nameless {
            base,
            created: format!("{:020}", record["created_ns"].as_u64().unwrap_or_default()),
            raw: text(&record["id"]),
        }
    }
}

impl Names {
    /// The names of all that was found.
    pub fn of(found: &FoundObjects) -> Names {
        let volumes = found.all("PersistentVolume").map(|volume| {
            let claim = volume["spec"]["claimRef"]["name"].as_str();
            let base = claim.map_or_else(
                || "volume without a claim".to_owned(),
                |claim| format!("volume of claim {claim}"),
            );
            Nameless::object(volume, base)
        });
        let contents = found.all("VolumeSnapshotContent").map(|content| {
            let base = if content["spec"]["source"]["snapshotHandle"].is_string() {
                // A user has made and named it.
                format!("content {}", text(&content["metadata"]["name"]))
            } else {
                let snapshot = &content["spec"]["volumeSnapshotRef"]["name"];
                format!("content of snapshot {}", text(snapshot))
            };
            Nameless::object(content, base)
        });
        let records = found.records.volumes.iter();
        let records = records.map(|volume| Nameless::record(volume, volume_base(volume)));
        let snapshots = found.records.snapshots.iter().map(|snapshot| {
            let name = parameter(snapshot, "volumesnapshot/name").unwrap_or("without a name");
            Nameless::record(snapshot, format!("data of snapshot {name}"))
        });
        let all = volumes.chain(contents).chain(records).chain(snapshots);
        Names(numbered(all.collect()))
    }

    /// The readable name of an object or record. What has none keeps its own.
    pub fn readable<'a>(&'a self, raw: &'a str) -> &'a str {
        self.0.get(raw).map_or(raw, String::as_str)
    }

    /// The path of an object, with its readable name.
    pub fn readable_path(&self, path: &str) -> String {
        let (parent, name) = path.rsplit_once('/').unwrap_or_default();
        format!("{parent}/{}", self.readable(name))
    }

    /// The path of an object with this readable path. None if there is no such object.
    pub fn raw_path(&self, path: &str) -> Option<String> {
        let (parent, name) = path.rsplit_once('/').unwrap_or_default();
        let mut known = self.0.iter();
        match known.find(|(_, readable)| *readable == name) {
            Some((raw, _)) => Some(format!("{parent}/{raw}")),
            // No name of Kubernetes has a space.
            None if name.contains(' ') => None,
            None => Some(path.to_owned()),
        }
    }
}

/// What the controllers have sent with a request about the owner of a record.
fn parameter<'a>(record: &'a Value, key: &str) -> Option<&'a str> {
    record["parameters"][format!("csi.storage.k8s.io/{key}")].as_str()
}

fn volume_base(record: &Value) -> String {
    if record["inline"].is_string() {
        return "data of an inline volume".to_owned();
    }
    let claim = parameter(record, "pvc/name").unwrap_or("without a name");
    format!("data of claim {claim}")
}

/// The readable names by the others. Of several with one base, the later ones have a number.
fn numbered(mut all: Vec<Nameless>) -> BTreeMap<String, String> {
    all.sort();
    let mut names = BTreeMap::new();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for Nameless { base, raw, .. } in all {
        let count = counts.entry(base.clone()).or_default();
        *count += 1;
        let readable = match *count {
            1 => base,
            count => format!("{base} ({count})"),
        };
        names.insert(raw, readable);
    }
    names
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::Records;

    fn volume(name: &str, claim: &str, created: &str) -> Value {
        json!({"metadata": {"name": name, "creationTimestamp": created},
            "spec": {"claimRef": {"name": claim}}})
    }

    fn names() -> Names {
        let records = Records {
            volumes: vec![
                json!({"id": "vol-1", "created_ns": 5,
                    "parameters": {"csi.storage.k8s.io/pvc/name": "c1"}}),
                json!({"id": "vol-2", "created_ns": 12, "inline": "csi-0", "parameters": {}}),
            ],
            snapshots: vec![json!({"id": "snap-1", "created_ns": 7,
                "parameters": {"csi.storage.k8s.io/volumesnapshot/name": "s1"}})],
        };
        let mut found = FoundObjects::new(records);
        found.add(
            "PersistentVolume",
            vec![
                volume("a", "c1", "2026-01-01T00:00:09Z"),
                volume("b", "c1", "2026-01-01T00:00:01Z"),
                json!({"metadata": {"name": "f"}, "spec": {}}),
            ],
        );
        let of = json!({"volumeSnapshotRef": {"name": "s1"}, "source": {"volumeHandle": "vol-1"}});
        let made = json!({"volumeSnapshotRef": {"name": "s2"}, "source": {"snapshotHandle": "x"}});
        found.add(
            "VolumeSnapshotContent",
            vec![
                json!({"metadata": {"name": "snapcontent-1"}, "spec": of}),
                json!({"metadata": {"name": "existing-s2"}, "spec": made}),
            ],
        );
        Names::of(&found)
    }

    #[rstest]
    #[case::first("b", "volume of claim c1")]
    #[case::later("a", "volume of claim c1 (2)")]
    #[case::free("f", "volume without a claim")]
    #[case::content("snapcontent-1", "content of snapshot s1")]
    #[case::of_a_user("existing-s2", "content existing-s2")]
    #[case::record("vol-1", "data of claim c1")]
    #[case::inline("vol-2", "data of an inline volume")]
    #[case::snapshot("snap-1", "data of snapshot s1")]
    #[case::unknown("gone", "gone")]
    fn what_programs_name_is_named_by_its_owner(#[case] raw: &str, #[case] expected: &str) {
        assert_eq!(names().readable(raw), expected);
    }

    #[rstest]
    #[case::volume(
        "/api/v1/persistentvolumes/a",
        "/api/v1/persistentvolumes/volume of claim c1 (2)"
    )]
    #[case::claim(
        "/api/v1/namespaces/u/persistentvolumeclaims/c1",
        "/api/v1/namespaces/u/persistentvolumeclaims/c1"
    )]
    fn paths_are_the_same_on_each_cluster(#[case] raw: &str, #[case] readable: &str) {
        let names = names();
        assert_eq!(names.readable_path(raw), readable);
        assert_eq!(names.raw_path(readable).as_deref(), Some(raw));
    }

    #[test]
    fn what_is_missing_has_no_path() {
        let path = "/api/v1/persistentvolumes/volume of claim c9";
        assert_eq!(names().raw_path(path), None);
    }
}

use super::*;
use crate::testkit::pairs;

fn keys(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The node n1 with these topology labels.
fn at(dir: &Path, labels: &str) -> Topology {
    Topology::with_labels(pairs("node=n1"), keys(labels), "n1", dir)
}

fn known(topology: &Topology) -> Option<Segments> {
    topology.segments().ok().map(|known| (*known).clone())
}

#[test]
fn own_segments_are_known_at_once() {
    for own in ["", "node=n1", "node=n1 rack=r1"] {
        let topology = Topology::from(pairs(own));
        assert_eq!(*topology.settled().unwrap(), pairs(own));
        assert_eq!(known(&topology), Some(pairs(own)));
        assert!(topology.labels().is_empty());
    }
}

#[test]
fn labels_are_required_and_stored() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let topology = at(&state, "zone region");
    let why = topology.segments().unwrap_err().to_string();
    assert!(
        why.contains("region, zone (--topology-from-node-labels)"),
        "{why}"
    );
    // A missing or empty label leaves the topology unknown.
    for labels in ["zone=a", "zone=a region= other=x"] {
        assert_eq!(topology.take(&pairs(labels)).unwrap(), ["region"]);
        assert_eq!(known(&topology), None);
    }
    assert!(
        topology
            .take(&pairs("zone=a region=eu other=x"))
            .unwrap()
            .is_empty()
    );
    let whole = pairs("node=n1 zone=a region=eu");
    assert_eq!(known(&topology), Some(whole.clone()));

    // The next process knows the labels without the API server; a node of another name does not.
    assert_eq!(known(&at(&state, "zone region")), Some(whole));
    assert_eq!(known(&at(&state, "zone")), Some(pairs("node=n1 zone=a")));
    assert_eq!(known(&at(&state, "zone rack")), None);
    let other = Topology::with_labels(pairs("node=n2"), keys("zone"), "n2", &state);
    assert_eq!(known(&other), None);
}

#[test]
fn an_unreadable_file_counts_as_none() {
    let dir = tempfile::tempdir().unwrap();
    for content in [
        "",
        "{",
        r#"{"schema": 2, "node": "n1", "labels": {"zone": "a"}}"#,
    ] {
        std::fs::write(dir.path().join(FILE), content).unwrap();
        let topology = at(dir.path(), "zone");
        assert_eq!(known(&topology), None, "{content}");
        topology.take(&pairs("zone=b")).unwrap();
        assert_eq!(
            known(&at(dir.path(), "zone")),
            Some(pairs("node=n1 zone=b"))
        );
    }
}

#[test]
fn an_unreadable_file_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory {
        dir: dir.path().join("state"),
        node: "n1".to_owned(),
    };
    assert_eq!(memory.read().unwrap(), Segments::new());
    std::fs::create_dir(&memory.dir).unwrap();
    assert_eq!(memory.read().unwrap(), Segments::new());
    for (content, expected) in [
        ("{", "is not readable"),
        (r#"{"schema": 2, "labels": []}"#, "has schema 2"),
    ] {
        std::fs::write(memory.dir.join(FILE), content).unwrap();
        let why = memory.read().unwrap_err().to_string();
        assert!(why.contains(FILE) && why.contains(expected), "{why}");
    }
}

#[test]
fn labels_change_only_until_they_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    at(dir.path(), "zone").take(&pairs("zone=a")).unwrap();
    // No caller has received the stored value yet.
    let topology = at(dir.path(), "zone");
    topology.take(&pairs("zone=b")).unwrap();
    assert_eq!(known(&topology), Some(pairs("node=n1 zone=b")));
    // A caller has received the value: it stays until the next start, which reads the labels again.
    let moved = topology.take(&pairs("zone=c")).unwrap_err().to_string();
    assert!(
        moved.contains(r#"label zone of this node is "c" now and was "b""#),
        "{moved}"
    );
    assert_eq!(known(&topology), Some(pairs("node=n1 zone=b")));
    let next = at(dir.path(), "zone");
    assert_eq!(known(&next), Some(pairs("node=n1 zone=c")));
    // A removed label keeps its value.
    assert_eq!(next.take(&pairs("")).unwrap(), ["zone"]);
    assert_eq!(known(&next), Some(pairs("node=n1 zone=c")));
    assert!(next.take(&pairs("zone=c")).unwrap().is_empty());
}

#[test]
fn registration_waits_for_current_labels() {
    let dir = tempfile::tempdir().unwrap();
    let waits = |_| {
        at(dir.path(), "zone").take(&pairs("zone=a")).unwrap();
        let topology = at(dir.path(), "zone");
        let asked = std::thread::spawn({
            let topology = topology.clone();
            move || topology.settled().map(|known| (*known).clone())
        });
        std::thread::sleep(Duration::from_millis(50));
        // On a busy machine, this may come after the wait has ended.
        let taken = topology.take(&pairs("zone=b"));
        let settled = asked.join().unwrap();
        taken.is_ok() && settled == Ok(pairs("node=n1 zone=b"))
    };
    assert!((0..3).any(waits));
    // Without a reader, the stored labels are used.
    let begun = std::time::Instant::now();
    let topology = at(dir.path(), "zone");
    assert_eq!(*topology.settled().unwrap(), pairs("node=n1 zone=b"));
    assert!(begun.elapsed() >= PATIENCE);
    assert!(at(dir.path(), "rack").settled().is_err());
}

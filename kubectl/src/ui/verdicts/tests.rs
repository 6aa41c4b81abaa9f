use serde_json::{Value, json};

use super::*;
use crate::test_objects::{self, read};

const DRIVER: &str = "hostloop.csi.dev";

/// Two hours after the objects were made.
const NOW: u64 = 1_767_322_800_000_000_000;

fn evidence(yaml: &str) -> Evidence {
    let all = test_objects::objects(yaml);
    Evidence {
        objects: test_objects::cluster(&all),
        groups: test_objects::of_kind(&all, "VolumeGroupSnapshot"),
        ..Evidence::default()
    }
}

/// Each verdict in a line: `NAMES TONE WORDS [STUCK] [NOTE]`.
fn lines(verdicts: &Verdicts) -> Vec<String> {
    let lines = verdicts.iter().map(|(lives, verdict)| {
        let value = serde_json::to_value(verdict).unwrap();
        let stuck = verdict.stuck.as_ref().map(|stuck| stuck.why.clone());
        let words = [
            Some(lives.join(" ")),
            value["tone"].as_str().map(str::to_owned),
            Some(verdict.words.clone()),
            stuck.map(|why| format!("[{why}]")),
            verdict.note.clone().map(|note| format!("({note})")),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    });
    lines.collect()
}

#[test]
fn every_life_of_the_page_gets_the_verdict_of_status() {
    let evidence = evidence(include_str!("tests/objects.yaml"));
    assert_eq!(
        lines(&verdicts(&evidence, DRIVER, NOW)),
        [
            "claim:c-bound volume:vol-bound good Bound",
            "claim:c-deleted volume:vol-deleted gone Released (kept: its policy is Retain)",
            "claim:c-full bad stuck [ProvisioningFailed: no room]",
            "claim:c-lost bad stuck [PersistentVolume pv-lost does not exist]",
            "claim:c-used volume:vol-used good published",
            "claim:c-waits wait Pending (waits for its first pod)",
            "group:g-ready good ready",
            "snapshot:s-deleted wait Deleting",
            "snapshot:s-new wait being taken",
            "snapshot:s-ready good ready",
        ]
    );
}

#[test]
fn without_a_cluster_reports_and_calls_are_judged() {
    let volume = json!({
        "id": "vol-a", "name": "n", "inline": null, "pool": "default", "size_bytes": 1,
        "allocated_bytes": 1, "provisioning": "thin", "format": "ext4", "source": null,
        "published_nodes": [], "staged_at": "/s", "staged_as": "mount", "loops": [],
        "direct_io": true, "frozen_since_ns": null, "mounts": ["/s"], "created_ns": 1,
    });
    let report = json!({
        "pools": [], "volumes": [volume], "snapshots": [], "groups": [], "loops": [],
        "mounts": [], "orphans": [],
    });
    let facts = crate::ui::verdict_facts::VerdictFacts::default();
    facts.report("", Some(&read(report)));
    let call = |id: &str, code: &str| {
        facts.event(&json!({
            "kind": "call", "name": "NodePublishVolume", "code": code, "t": 1, "error": "why",
            "request": {"volume_id": id},
        }));
        lines(&verdicts(&facts.now(0).unwrap(), "", NOW))
    };
    let unknown = "volume:vol-b bad stuck [NodePublishVolume failed with INTERNAL: why]";
    assert_eq!(
        call("vol-b", "INTERNAL"),
        ["volume:vol-a good staged", unknown]
    );
    assert_eq!(
        call("vol-a", "INTERNAL"),
        [
            "volume:vol-a bad staged, stuck [NodePublishVolume failed with INTERNAL: why]",
            unknown
        ]
    );
    assert_eq!(call("vol-b", "OK").len(), 1);
}

#[test]
fn a_fault_is_in_the_words_and_not_good() {
    let volume = json!({
        "id": "vol-a", "name": "n", "inline": null, "pool": "default", "size_bytes": 1,
        "allocated_bytes": 1, "provisioning": "thin", "format": "ext4", "source": null,
        "published_nodes": [], "staged_at": "/s", "staged_as": "mount", "loops": [],
        "direct_io": true, "frozen_since_ns": null, "mounts": ["/s"], "created_ns": 1,
        "fault": {"name": "gone", "fault": "gone,for=600s", "since_ns": 1, "state": "active"},
    });
    let report = json!({
        "pools": [], "volumes": [volume], "snapshots": [], "groups": [], "loops": [],
        "mounts": [], "orphans": [],
    });
    let facts = crate::ui::verdict_facts::VerdictFacts::default();
    facts.report("", Some(&read(report)));
    assert_eq!(
        lines(&verdicts(&facts.now(0).unwrap(), "", NOW)),
        ["volume:vol-a wait staged, fault gone"]
    );
}

#[test]
fn only_what_changes_is_sent_and_ends_come_first() {
    let evidence = evidence(include_str!("tests/objects.yaml"));
    let before = verdicts(&evidence, DRIVER, NOW);
    assert_eq!(messages(&Verdicts::new(), &before).len(), before.len());
    assert_eq!(messages(&before, &before), []);
    let mut now = before.clone();
    let lives = vec!["claim:c-used".to_owned(), "volume:vol-used".to_owned()];
    let used = now.remove(&lives).unwrap();
    now.insert(vec!["volume:vol-used".to_owned()], used);
    let sent: Vec<Value> = messages(&before, &now)
        .iter()
        .map(|message| serde_json::from_str(&message.text).unwrap())
        .collect();
    let shown: Vec<(&Value, bool)> = sent
        .iter()
        .map(|message| (&message["lives"], message["verdict"].is_null()))
        .collect();
    assert_eq!(
        shown,
        [(&json!(lives), true), (&json!(["volume:vol-used"]), false)]
    );
}

#[tokio::test]
async fn a_verdict_follows_its_objects() {
    let out = Out::new();
    let sending = tokio::spawn(send(DRIVER.to_owned(), 0, out.clone()));
    let class = json!({"metadata": {"name": "c"}, "provisioner": DRIVER});
    out.verdict_facts.set("StorageClass", "c", &class);
    let claim = json!({
        "metadata": {"name": "a", "namespace": "demo", "uid": "u"},
        "spec": {"storageClassName": "c"}, "status": {"phase": "Lost"},
    });
    out.verdict_facts
        .set("PersistentVolumeClaim", "demo/a", &claim);
    let start = Instant::now();
    while out.history.all().texts.is_empty() {
        assert!(start.elapsed() < test_objects::PATIENCE);
        sleep(Duration::from_millis(10)).await;
    }
    let text = out.history.all().texts[0].clone();
    assert!(text.contains("\"lives\":[\"claim:u\"]"), "{text}");
    assert!(text.contains("is gone"), "{text}");
    sending.abort();
}

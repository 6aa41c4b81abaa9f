use serde_json::{Value, json};

use super::decide::decide;
use super::decide::tests::{DELETED, class, of};
use super::*;
use crate::api::scope::MANAGED_BY;
use crate::testing::{self, DRIVER, with};

mod members;

const CONTENT: &str = "groupsnapcontent-g1";

pub(crate) fn group(changes: Value) -> Value {
    with(
        json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1",
            "kind": "VolumeGroupSnapshot",
            "metadata": {"name": "all", "namespace": "team", "uid": "g1", "resourceVersion": "7",
                "finalizers": [names::GROUP_BOUND]},
            "spec": {"source": {"selector": {"matchLabels": {"app": "db"}}},
                "volumeGroupSnapshotClassName": "fast"},
        }),
        &changes,
    )
}

pub(crate) fn content(changes: Value) -> Value {
    with(
        json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1",
            "kind": "VolumeGroupSnapshotContent",
            "metadata": {"name": CONTENT},
            "spec": {
                "volumeGroupSnapshotRef": {"namespace": "team", "name": "all", "uid": "g1"},
                "deletionPolicy": "Delete", "driver": "csi.example",
                "source": {"volumeHandles": ["vol-1", "vol-2"]},
            },
        }),
        &changes,
    )
}

/// A claim and its volume, with this number in all names.
fn claim(number: usize, claim: Value, volume: Value) -> Claim {
    let name = format!("data-{number}");
    let it = json!({
        "metadata": {"name": name, "namespace": "team", "uid": name, "labels": {"app": "db"}},
        "spec": {"volumeName": format!("pv-{number}")}, "status": {"phase": "Bound"},
    });
    let of_claim = json!({"spec": {
        "claimRef": {"namespace": "team", "name": name, "uid": name}, "volumeMode": "Block",
    }});
    let its = testing::volume(&format!("pv-{number}"), DRIVER, &format!("vol-{number}"));
    (
        of(with(it, &claim)),
        Some(of(with(with(its, &of_claim), &volume))),
    )
}

type Claim = (Arc<PersistentVolumeClaim>, Option<Arc<PersistentVolume>>);

/// What a group finds of these claims.
fn sources(
    group: &VolumeGroupSnapshot,
    claims: &[Claim],
    nodes: Option<&[Arc<Node>]>,
) -> Vec<Result<SourceVolume, String>> {
    let selected = claims.iter().filter(|(claim, _)| selects(group, claim));
    selected
        .map(|(claim, volume)| SourceVolume::new(claim, volume.as_deref(), nodes))
        .collect()
}

/// Facts with everything except the content.
pub(crate) fn facts(it: Value) -> Facts {
    let snapshot: Arc<VolumeGroupSnapshot> = of(it);
    let web = json!({"metadata": {"labels": {"app": "web"}}});
    let claims = [
        claim(1, json!({}), json!({})),
        claim(2, json!({}), json!({})),
        claim(3, web, json!({})),
    ];
    let sources = sources(&snapshot, &claims, None);
    Facts {
        snapshot,
        content: None,
        classes: vec![class("fast", json!({})), class("slow", json!({}))],
        nodes: None,
        own: GroupFacts {
            sources,
            members: Vec::new(),
            owned: Vec::new(),
            restoring: Vec::new(),
        },
    }
}

#[track_caller]
pub(crate) fn expect(facts: &Facts, expected: &str) {
    decide::tests::expect(facts, expected, |step| match step {
        GroupStep::CreateMember(_) => "member".to_owned(),
        GroupStep::CreateMemberContent(_) => "member's content".to_owned(),
        GroupStep::BindMemberContent(_, uid) => format!("bind member's content to {uid}"),
        GroupStep::BindMember(_, content) => format!("bind member to {content}"),
        GroupStep::MemberContentStatus(_, status) => format!("member's content {status}"),
        GroupStep::DeleteMembers(members) => format!("delete {} members", members.len()),
    });
}

#[test]
fn before_there_is_a_content() {
    let selector = |selector: Value| json!({"spec": {"source": {"selector": selector}}});
    let expression = |operator: &str| {
        selector(json!({"matchLabels": null, "matchExpressions": [
            {"key": "app", "operator": operator, "values": ["db"]}]}))
    };
    let of = |volumes: &[usize]| {
        let handles: Vec<_> = volumes
            .iter()
            .map(|number| format!("vol-{number}"))
            .collect();
        format!("create of {}", json!({"volumeHandles": handles}))
    };
    let failure = |why| format!("GroupSnapshotContentCreationFailed: {why}");
    let labels = |labels: Value| selector(json!({"matchLabels": labels}));
    let bare = json!({"metadata": {"finalizers": null}});
    for (changes, expected) in [
        (json!({}), of(&[1, 2])),
        (expression("In"), of(&[1, 2])),
        (expression("NotIn"), of(&[3])),
        (labels(Value::Null), of(&[1, 2, 3])),
        (
            labels(json!({"app": "none"})),
            failure("its selector fits no claim"),
        ),
        (expression("Near"), failure("selector")),
        (bare, "finalizers 1".to_owned()),
    ] {
        expect(&facts(group(changes)), &expected);
    }
}

#[test]
fn what_a_group_is_of() {
    let affine = |node: &str| json!({"spec": {"nodeAffinity": testing::affinity("on", &[node])}});
    let of_other =
        "VolumeGroupSnapshotClass fast is of driver csi.example, but volume pv-2 is of other";
    let pending = json!({"status": {"phase": "Pending"}});
    for (claim_is, volume_is, expected) in [
        (
            json!({}),
            affine("1"),
            "create of {\"volumeHandles\":[\"vol-1\",\"vol-2\"]}",
        ),
        (
            json!({}),
            affine("2"),
            "the volumes are on different nodes (node-1, node-2)",
        ),
        (
            pending,
            json!({}),
            "claim data-2 is not bound to a volume yet",
        ),
        (
            json!({}),
            json!({"spec": {"csi": null}}),
            "volume pv-2 is not of a CSI driver",
        ),
        (
            json!({}),
            json!({"spec": {"csi": {"driver": "other"}}}),
            of_other,
        ),
    ] {
        let mut facts = facts(group(json!({})));
        let claims = [
            claim(1, json!({}), affine("1")),
            claim(2, claim_is, volume_is),
        ];
        let nodes: [Arc<Node>; 2] = ["1", "2"].map(|number| {
            of(json!({"metadata": {"name": format!("node-{number}"),
                "labels": {"on": number}}}))
        });
        facts.own.sources = sources(&facts.snapshot, &claims, Some(&nodes));
        expect(&facts, expected);
    }
}

/// All nodes of a kernel fit their affinities. Their labels name the node that has them.
#[test]
fn a_group_of_shared_volumes_is_of_their_owner() {
    let nodes: [Arc<Node>; 2] = ["1", "2"].map(|number| {
        of(json!({"metadata": {"name": format!("node-{number}"), "labels": {"on": number}}}))
    });
    let shared = |owner: Value| {
        json!({
            "metadata": {"labels": {"hostloop.csi.dev/node": owner}},
            "spec": {
                "csi": {"volumeAttributes": {"reach": "kernel"}},
                "nodeAffinity": testing::affinity("on", &["1", "2"]),
            },
        })
    };
    for (first, second, expected) in [
        ("node-2", json!("node-2"), Ok(Some("node-2"))),
        ("node-1", json!("node-2"), Err("different nodes")),
        ("node-2", json!(null), Ok(None)),
        ("node-2", json!("node-9"), Ok(None)),
    ] {
        let claims = [
            claim(1, json!({}), shared(json!(first))),
            claim(2, json!({}), shared(second)),
        ];
        let group = of::<VolumeGroupSnapshot>(group(json!({})));
        let found = sources(&group, &claims, Some(&nodes)).into_iter();
        let found: Vec<SourceVolume> = found.map(|source| source.expect("a volume")).collect();
        let found = node(&found.iter().collect::<Vec<_>>());
        let expected = expected.map(|node: Option<&str>| node.map(str::to_owned));
        testing::check_result(found, expected, &claims);
    }
}

/// A label would name a node that can't take the group.
#[test]
fn a_group_with_a_volume_of_a_gone_node_gets_no_label() {
    let affine = |node: &str| json!({"spec": {"nodeAffinity": testing::affinity("on", &[node])}});
    let nodes: [Arc<Node>; 1] = [of(
        json!({"metadata": {"name": "node-1", "labels": {"on": "1"}}}),
    )];
    for (first, second, expected) in [
        (affine("1"), affine("1"), Some("node-1")),
        (affine("1"), json!({}), Some("node-1")),
        (affine("1"), affine("9"), None),
        (affine("9"), affine("9"), None),
    ] {
        let mut facts = facts(group(json!({})));
        let claims = [claim(1, json!({}), first), claim(2, json!({}), second)];
        facts.own.sources = sources(&facts.snapshot, &claims, Some(&nodes));
        let Step::Create(made) = decide(&facts) else {
            panic!("{:?}", decide(&facts));
        };
        let label = made.labels().get(MANAGED_BY).map(String::as_str);
        assert_eq!(label, expected, "{claims:?}");
    }
}

/// Labels of a claim may take 15 kB, and a namespace may have thousands of claims and many groups.
#[test]
fn a_group_keeps_little_of_each_claim() {
    let labels: serde_json::Map<_, _> = (0..200)
        .map(|number| (format!("label-{number}"), json!("v".repeat(63))))
        .collect();
    let large = json!({"metadata": {"labels": labels}});
    let options = json!({"spec": {"mountOptions": vec!["o".repeat(64); 64]}});
    let claims = [claim(1, large, options)];
    let found = sources(&of::<VolumeGroupSnapshot>(group(json!({}))), &claims, None);
    let kept = format!("{found:?}");
    assert!(found.len() == 1 && kept.len() < 256, "{kept}");
}

#[test]
fn the_content_made() {
    let mut facts = facts(group(json!({})));
    let nodes: [Arc<Node>; 1] = [of(json!({"metadata": {"name": "node-1"}}))];
    let affinity = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}}}});
    let claims = [claim(1, json!({}), affinity)];
    facts.own.sources = sources(&facts.snapshot, &claims, Some(&nodes));
    let secret = |what: &str| format!("csi.storage.k8s.io/group-snapshotter-secret-{what}");
    let secret = json!({"parameters": {secret("name"): "key", secret("namespace"): "keys"}});
    facts.classes = vec![class("fast", secret)];
    let Step::Create(made) = decide(&facts) else {
        panic!("{:?}", decide(&facts));
    };
    assert_eq!(
        serde_json::to_value(made).unwrap(),
        json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1",
            "kind": "VolumeGroupSnapshotContent",
            "metadata": {
                "name": "groupsnapcontent-g1",
                "annotations": {
                    "groupsnapshot.storage.kubernetes.io/deletion-secret-name": "key",
                    "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace": "keys",
                    "hostloop.csi.dev/block-volume-handles": "[\"vol-1\"]",
                },
                "labels": {"snapshot.storage.kubernetes.io/managed-by": "node-1"},
                "finalizers": ["groupsnapshot.storage.kubernetes.io/\
                    volumegroupsnapshotcontent-bound-protection"],
            },
            "spec": {
                "volumeGroupSnapshotRef": {"apiVersion": "groupsnapshot.storage.k8s.io/v1",
                    "kind": "VolumeGroupSnapshot", "namespace": "team", "name": "all",
                    "uid": "g1", "resourceVersion": "7"},
                "deletionPolicy": "Delete",
                "driver": "csi.example",
                "volumeGroupSnapshotClassName": "fast",
                "source": {"volumeHandles": ["vol-1"]},
            },
        })
    );
}

#[test]
fn with_a_content() {
    let bound = |ready: bool| json!({"status": {"boundVolumeGroupSnapshotContentName": CONTENT, "readyToUse": ready}});
    let taken = json!({"status": {"readyToUse": true, "volumeGroupSnapshotHandle": "gs",
        "creationTime": "2026-01-02T03:04:05Z"}});
    let copied = "status {\"creationTime\":\"2026-01-02T03:04:05Z\",\"readyToUse\":true}";
    for (changes, content_is, expected) in [
        (bound(false), taken.clone(), copied),
        (
            json!({"metadata": {"finalizers": null}}),
            json!({}),
            "finalizers 1",
        ),
        (bound(true), taken, "done"),
    ] {
        let mut facts = facts(group(changes));
        facts.content = Some(of(content(content_is)));
        expect(&facts, expected);
    }
}

#[test]
fn deletion() {
    let marked = json!({GROUP.being_deleted: "yes"});
    let going = json!({"annotations": marked, "deletionTimestamp": DELETED});
    let retained = json!({"metadata": {"annotations": marked},
        "spec": {"deletionPolicy": "Retain"}});
    let member = |deleting: Option<&str>| {
        of::<VolumeSnapshot>(json!({"apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot", "metadata": {"name": "s", "deletionTimestamp": deleting},
            "spec": {"source": {}}}))
    };
    let kept = || vec![member(None), member(Some(DELETED))];
    let doomed = |metadata: Value| Some(json!({"metadata": metadata}));
    let others = Some(json!({"spec": {"volumeGroupSnapshotRef": {"uid": "other"}}}));
    let restored = "block deletion: claims are being restored";
    let with_mark = json!({"annotations": marked});
    for (content_is, owned, restoring, expected) in [
        (None, vec![], "", "finalizers 0"),
        (None, kept(), "", "delete 1 members"),
        (None, vec![], "s", restored),
        (doomed(json!({})), vec![], "", "mark"),
        (doomed(with_mark), kept(), "", "delete content"),
        (doomed(going.clone()), kept(), "", "delete 1 members"),
        (doomed(going), vec![], "", "done"),
        (Some(retained.clone()), kept(), "", "delete 1 members"),
        (Some(retained), vec![], "", "finalizers 0"),
        (others, vec![], "", "finalizers 0"),
    ] {
        let changes = json!({"metadata": {"deletionTimestamp": DELETED}});
        let mut facts = facts(group(changes));
        facts.content = content_is.map(|changes| of(content(changes)));
        facts.own.owned = owned;
        facts.own.restoring = restoring.split_whitespace().map(str::to_owned).collect();
        expect(&facts, expected);
    }
    let unheld = json!({"metadata": {"deletionTimestamp": DELETED,
        "finalizers": ["x/other"]}});
    expect(&facts(group(unheld)), "done");
}

use serde_json::{Value, json};

use super::*;
use crate::node_cleanup::sample::{KEY, capacity, csi_node, node, object, shared, volume, with};
use crate::testing::DRIVER;

/// n1 exists; n2 existed earlier; n3 was never seen.
fn resolver() -> NodeResolver {
    let mut resolver = NodeResolver::default();
    let all = [object(node("n1")), object(node("n2"))];
    let registered = [object(csi_node("n1")), object(csi_node("n2"))];
    resolver.note(&all, &registered, DRIVER);
    resolver.note(&all[..1], &registered, DRIVER);
    resolver
}

/// A node affinity from a text such as `node In n1 n2 and zone Exists or node In n3`.
fn affinity(text: &str) -> Value {
    let requirement = |text: &str| {
        let mut words = text.split(' ');
        let key = words.next().expect("a key").replace("node", KEY);
        let operator = words.next().expect("an operator");
        json!({"key": key, "operator": operator, "values": words.collect::<Vec<_>>()})
    };
    let term = |text: &str| {
        let all: Vec<Value> = text.split(" and ").map(requirement).collect();
        json!({"matchExpressions": all})
    };
    let terms: Vec<Value> = text.split(" or ").map(term).collect();
    json!({"required": {"nodeSelectorTerms": terms}})
}

#[test]
fn volumes_are_of_one_absent_node_or_of_none() {
    let check = |affinity: Value, expected: Option<&str>| {
        let bare = json!({"spec": {"nodeAffinity": null}});
        let one = with(volume("v", "n2"), bare);
        let one = with(one, json!({"spec": {"nodeAffinity": affinity}}));
        let found = resolver().of_volume(&object(one));
        assert_eq!(found.as_deref(), expected, "{affinity}");
    };
    for (text, expected) in [
        ("node In n1", None),
        ("node In n2", Some("n2")),
        ("node In n3", Some("n3")),
        ("node In n1 n2", None),
        ("node In n2 n3", None),
        ("node In n2 or node In n1", None),
        ("node In n2 or node In n2", Some("n2")),
        ("node In n2 or node In n3", None),
        ("node In n2 or zone In z", None),
        ("node In n2 and rack In r", Some("n2")),
        ("node NotIn n1", None),
        ("node Exists", None),
        // The keys of others do not name nodes.
        ("zone In n3", None),
        // These are not names of nodes.
        ("node In N3", None),
        ("node In ../n3", None),
    ] {
        check(affinity(text), expected);
    }
    check(json!({"required": {"nodeSelectorTerms": []}}), None);
    check(Value::Null, None);
}

/// Nodes of its kernel are there, and do not have it.
#[test]
fn shared_volumes_are_of_the_node_in_their_label() {
    for (owner, nodes, expected) in [
        ("n1", &["n1", "n2"][..], None),
        ("n2", &["n2", "n1"], Some("n2")),
        ("n3", &["n3", "n1"], Some("n3")),
        ("n2", &["n2"], Some("n2")),
        // The label contradicts the affinity.
        ("n2", &["n3", "n1"], None),
        ("n1", &["n2", "n3"], None),
        ("N3", &["N3", "n1"], None),
    ] {
        let found = resolver().of_volume(&object(shared("v", owner, nodes)));
        assert_eq!(found.as_deref(), expected, "{owner} {nodes:?}");
    }
    let unlabelled = json!({"metadata": {"labels": null}});
    let unlabelled = with(shared("v", "n2", &["n2", "n3"]), unlabelled);
    assert_eq!(resolver().of_volume(&object(unlabelled)), None);
}

#[test]
fn a_node_that_lost_its_labels_is_still_there() {
    let mut resolver = resolver();
    let bare = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}});
    resolver.note(
        &[object(node("n1")), object(bare)],
        &[object(csi_node("n1"))],
        DRIVER,
    );
    assert_eq!(resolver.of_volume(&object(volume("v", "n2"))), None);
}

/// If label values are not node names, only nodes seen earlier can be resolved from them.
#[test]
fn values_that_are_no_names_prove_nothing() {
    let id = |name: &str, id: &str| with(node(name), json!({"metadata": {"labels": {KEY: id}}}));
    let mut resolver = NodeResolver::default();
    let all = [
        object(id("n1", "n1")),
        object(id("n2", "id-2")),
        object(id("n3", "id-3")),
    ];
    let registered = ["n1", "n2", "n3"].map(|name| object(csi_node(name)));
    resolver.note(&all, &registered, DRIVER);
    resolver.note(&all[..2], &registered[..2], DRIVER);
    for (value, expected) in [
        ("id-2", None),
        ("id-3", Some("n3")),
        ("id-4", None),
        ("n4", None),
    ] {
        let found = resolver.of_volume(&object(volume("v", value)));
        assert_eq!(found.as_deref(), expected, "{value}");
    }
    // A label value that two nodes share does not identify a node.
    let all = [
        object(id("n1", "n1")),
        object(id("n2", "id-2")),
        object(id("n4", "id-3")),
    ];
    let registered = ["n1", "n2", "n4"].map(|name| object(csi_node(name)));
    resolver.note(&all, &registered, DRIVER);
    resolver.note(&all[..2], &registered[..2], DRIVER);
    assert_eq!(resolver.of_volume(&object(volume("v", "id-3"))), None);
}

/// The driver may be starting on that node.
#[test]
fn a_value_that_is_no_name_counts_without_the_driver() {
    let other = json!({"metadata": {"labels": {KEY: "id-3"}}});
    let mut resolver = NodeResolver::default();
    let all = [object(node("n1")), object(with(node("n3"), other))];
    resolver.note(&all, &[object(csi_node("n1"))], DRIVER);
    assert_eq!(resolver.of_volume(&object(volume("v", "n2"))), None);
}

#[test]
fn other_drivers_keys_say_nothing() {
    let other = crate::testing::csi_node("n1", "other", KEY);
    let mut resolver = NodeResolver::default();
    resolver.note(&[object(node("n1"))], &[object(other)], DRIVER);
    assert_eq!(resolver.of_volume(&object(volume("v", "n2"))), None);
}

#[test]
fn what_nothing_names_is_forgotten() {
    let mut resolver = resolver();
    resolver.forget_all_but(&BTreeSet::from(["n2".to_owned()]));
    assert!(resolver.known.contains_key("n2"));
    resolver.forget_all_but(&BTreeSet::new());
    assert_eq!(resolver.known.keys().collect::<Vec<_>>(), ["n1"]);
}

#[test]
fn names() {
    let long = "n".repeat(254);
    for (name, expected) in [
        ("n2", true),
        ("ip-10-0-0-1.ec2.internal", true),
        ("n1", false),
        ("", false),
        ("N2", false),
        ("n2/status", false),
        ("..", false),
        ("a..b", false),
        ("-a", false),
        ("a.", false),
        ("a b", false),
        (&long, false),
    ] {
        assert_eq!(resolver().absent(name).is_some(), expected, "{name:?}");
    }
}

#[test]
fn labels_that_were_cut() {
    let long = |end: &str| format!("{}{end}", "n".repeat(70));
    let mut resolver = NodeResolver::default();
    let all = [
        object(node("n1")),
        object(node(&long("a"))),
        object(node(&long("b"))),
    ];
    let registered = [object(csi_node("n1")), object(csi_node(&long("a")))];
    resolver.note(&all, &registered, DRIVER);
    for (label, expected) in [
        ("n1", None),
        ("n2", Some("n2")),
        (&node_label(&long("a")), None),
    ] {
        let found = resolver.absent_by_label(label);
        assert_eq!(found.as_deref(), expected, "{label}");
    }
    resolver.note(&all[..1], &[], DRIVER);
    for (name, known) in [(long("a"), true), (long("b"), false), (long("c"), false)] {
        let found = resolver.absent_by_label(&node_label(&name));
        assert_eq!(found.as_deref(), known.then_some(name.as_str()), "{name}");
    }
}

#[test]
fn capacities_are_who_keeps_them() {
    let long = "n".repeat(60);
    let cut = managed_by(Some(&long));
    assert_ne!(cut, format!("external-provisioner-{long}"));
    for (what, managed_by, segment, expected) in [
        ("there", "external-provisioner-n1", "n1", None),
        ("gone", "external-provisioner-n2", "n2", Some("n2")),
        ("never seen", "external-provisioner-n3", "n3", Some("n3")),
        ("one for all", "external-provisioner", "n2", None),
        ("another's", "other-n2", "n2", None),
        (
            "there, of a place that is gone",
            "external-provisioner-n1",
            "n2",
            None,
        ),
        (
            "cut, and named by its place",
            &cut,
            &long,
            Some(long.as_str()),
        ),
        ("cut, and named by nothing", &cut, "n2", None),
    ] {
        let one = object(crate::node_cleanup::sample::capacity(
            "c", managed_by, segment,
        ));
        assert_eq!(resolver().of_capacity(&one).as_deref(), expected, "{what}");
    }
    let bare = with(
        capacity("c", "", "n2"),
        json!({"metadata": {"labels": null}}),
    );
    assert_eq!(resolver().of_capacity(&object(bare)), None);
    // The label matches an existing node.
    let mut resolver = resolver();
    resolver.note(&[object(node(&long))], &[], DRIVER);
    assert_eq!(
        resolver.of_capacity(&object(capacity("c", &cut, &long))),
        None
    );
}

//! Placement of claims that fit on either node.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_test::cluster::BUSYBOX;
use hostloop_test::front::objects::{cloned, restored};
use serde_json::{Value, json};

use crate::objects::{assert_text, handle_of, name, text};
use crate::site::Site;
use crate::snapshots::{content_of, group_snapshot, label, larger, snapshot};
use crate::space::{Space, on_node, there};
use crate::world::{World, check};

/// The label with the node of an object, for watches.
const LABEL: &str = "/metadata/labels/hostloop.csi.dev~1node";

/// Two replicas with anti-affinity run on two nodes, and so do their volumes.
pub(crate) fn replicas_spread_and_their_volumes_with_them(world: &World) {
    let space = Space::new(world, "spread");
    let labels = json!({"app": "spread"});
    let apart = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}]}});
    space.create(json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2, "serviceName": "web", "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "affinity": apart, "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": BUSYBOX, "command": ["sleep", "1000000"],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "storageClassName": "hostloop-xfs", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "512Mi"}}}}]}}));
    let mut nodes = BTreeSet::new();
    for pod in ["web-0", "web-1"] {
        world.until("the replica", || {
            let there = world.find("Pod", &space.name, pod).is_some();
            check(there, || space.events())
        });
        space.ready(pod);
        let volume = space.volume(&format!("data-{pod}"));
        let home = world.home(&volume);
        assert_eq!(space.node_of(pod), home.name());
        assert_text(&volume, LABEL, home.name());
        assert!(handle_of(&volume).contains(&home.pool_id()));
        space.sh(pod, "echo here > /data/file && sync");
        nodes.insert(home.name().to_owned());
    }
    assert_eq!(nodes.len(), 2);
    world.delete("StatefulSet", &space.name, "web");
    space.end();
}

/// A class that allows only the second node has its volumes there, with immediate and late binding.
pub(crate) fn claims_go_where_their_class_allows(world: &World) {
    let space = Space::new(world, "allowed");
    let site = world.site(2);
    let now = space.class("now", on_node(site.name()));
    let mut waits = on_node(site.name());
    waits["volumeBindingMode"] = json!("WaitForFirstConsumer");
    let late = space.class("late", waits);
    for class in [&now, &late] {
        let claim = class.as_str();
        let volume_there = || assert_eq!(world.home(&space.volume(claim)).name(), site.name());
        space.claim(claim, class, json!({}));
        if *class == now {
            volume_there();
        }
        space.run(claim, &[claim]);
        assert_eq!(space.node_of(claim), site.name());
        assert_eq!(
            space.sh(claim, &format!("echo x > /{claim}/x && cat /{claim}/x")),
            "x"
        );
        volume_there();
        space.until_claim("labelled", claim, |claim| text(claim, LABEL) == site.name());
    }
    space.end();
}

/// Many claims with immediate binding spread over both nodes. No node loses a race, and each claim
/// has one volume.
pub(crate) fn immediate_claims_are_spread_without_a_race(world: &World) {
    let space = Space::new(world, "race");
    let class = space.class("now", json!({}));
    let claims: Vec<String> = (0..16).map(|i| format!("c{i}")).collect();
    for claim in &claims {
        // The node with the most free space comes first. Together the claims ask for much more than
        // the difference in free space between the nodes.
        space.sized(claim, &class, "1Gi");
    }
    let volumes: Vec<Value> = claims.iter().map(|claim| space.volume(claim)).collect();
    assert_one_volume_each(world, &space, &volumes);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for volume in &volumes {
        let node = world.home(volume).name().to_owned();
        *counts.entry(node).or_default() += 1;
    }
    let spread = counts.len() == 2 && counts.values().all(|n| *n >= 4);
    assert!(spread, "{counts:?}");
    let audit = world.audit();
    let refused: Vec<_> = audit
        .of("system:serviceaccount:hostloop:")
        .into_iter()
        .filter(|r| r.code == 409 && r.namespace == space.name && r.resource != "events")
        .map(|r| format!("{} {} {}: {}", r.verb, r.resource, r.name, r.message))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    space.end();
}

/// With the component place-claims, the API server selects the node of small claims by the leader's
/// table and labels them, in a write of the cluster's own. The leader places the others.
pub(crate) fn the_api_server_places_claims(world: &World) {
    const SELECTED: &str = "/metadata/annotations/volume.kubernetes.io~1selected-node";
    const FIELD: &str = "f:volume.kubernetes.io/selected-node";
    let space = Space::new(world, "table");
    let class = space.class("now", json!({}));
    // Makes a claim, and returns the manager of its node: none if a policy selected it.
    let placed = |claim: &str, size: &str| {
        space.sized(claim, &class, size);
        let volume = space.volume(claim);
        let claim = space.claim_now(claim);
        for at in [LABEL, SELECTED] {
            assert_text(&claim, at, world.home(&volume).name());
        }
        let fields = claim["metadata"]["managedFields"]
            .as_array()
            .into_iter()
            .flatten();
        let mut by = fields.filter(|by| by["fieldsV1"].to_string().contains(FIELD));
        by.next().map(|by| text(by, "/manager").to_owned())
    };
    let mut tries = 0;
    world.until("a table in force", || {
        tries += 1;
        let by = placed(&format!("first-{tries}"), "16Mi");
        check(by.is_none(), || format!("{by:?}"))
    });
    for claim in ["a", "b", "c", "d"] {
        assert_eq!(placed(claim, "16Mi"), None);
    }
    // A table covers claims of up to 1/512 of the room.
    let by = placed("large", "1Gi").unwrap_or_default();
    assert!(by.starts_with("hostloop"), "{by:?}");
    space.end();
}

/// Waits until there is one volume per claim, on its own node. A driver that was stopped or killed
/// may have made one more, and deletes it once it knows that it is not needed.
pub(crate) fn assert_one_volume_each(world: &World, space: &Space<'_>, volumes: &[Value]) {
    let handles: BTreeSet<&str> = volumes.iter().map(handle_of).collect();
    assert_eq!(handles.len(), volumes.len());
    let mut objects = world.list("PersistentVolume", "");
    objects.retain(|v| text(v, "/spec/claimRef/namespace") == space.name);
    assert_eq!(objects.len(), volumes.len(), "an object for each claim");
    let names: BTreeSet<&str> = volumes.iter().map(name).collect();
    let sites = world.sites();
    let expected = |site: &Site<'_>| {
        let here = volumes
            .iter()
            .filter(|v| world.home(v).name() == site.name());
        let handles: BTreeSet<String> = here.map(|v| handle_of(v).to_owned()).collect();
        (site.name().to_owned(), handles)
    };
    let expected: BTreeMap<_, _> = sites.iter().map(expected).collect();
    world.until("one volume for each claim, on its node", || {
        let made = |site: &Site<'_>| {
            let mut made = site.volumes();
            made.retain(|(_, named)| names.contains(&**named));
            let handles: BTreeSet<String> = made.into_iter().map(|(handle, _)| handle).collect();
            (site.name().to_owned(), handles)
        };
        let seen: BTreeMap<_, _> = sites.iter().map(made).collect();
        check(seen == expected, || format!("{seen:?}, not {expected:?}"))
    });
}

/// A volume from a snapshot or a clone is on the node of its source, with either binding mode, and
/// its pod runs there too.
pub(crate) fn copies_go_where_their_source_is(world: &World) {
    let space = Space::new(world, "steering");
    let site = world.site(2);
    space.claim("data", "hostloop-xfs", json!({}));
    space.run_with("writer", &["data"], there(site.name()));
    space.sh("writer", "echo kept > /data/file && sync");
    snapshot(&space, "snap", "data");
    let xfs = json!({"parameters": {"csi.storage.k8s.io/fstype": "xfs"}});
    let immediate = space.class("now", xfs);
    let mut pods = Vec::new();
    for (binding, class) in [("late", "hostloop-xfs"), ("now", immediate.as_str())] {
        for (what, source) in [
            ("restored", restored("snap")),
            ("larger", larger("snap")),
            ("cloned", cloned("data")),
        ] {
            let claim = format!("{what}-{binding}");
            space.claim(&claim, class, source);
            space.pod(&claim, &[&claim]);
            pods.push(claim);
        }
    }
    for pod in &pods {
        space.ready(pod);
        assert_eq!(space.node_of(pod), site.name(), "{pod}");
        assert_eq!(space.sh(pod, &format!("cat /{pod}/file")), "kept");
        assert_eq!(world.home(&space.volume(pod)).name(), site.name());
    }
    for larger in ["larger-late", "larger-now"] {
        let mib = space.mib(larger, &format!("/{larger}"));
        assert!(mib > 850, "{mib} MiB");
    }
    space.end();
}

/// Each node takes snapshots of its own volumes and expands them.
pub(crate) fn snapshots_and_expansions_on_each_node(world: &World) {
    let space = Space::new(world, "each");
    for site in world.sites() {
        let claim = format!("on-{}", site.count);
        space.claim(&claim, "hostloop-xfs", json!({}));
        space.pod_with(&claim, &[&claim], there(site.name()));
    }
    for site in world.sites() {
        let claim = format!("on-{}", site.count);
        space.ready(&claim);
        space.sh(&claim, &format!("echo {claim} > /{claim}/file && sync"));
        snapshot(&space, &claim, &claim);
        let content = content_of(&space, &claim);
        let handle = text(&content, "/status/snapshotHandle");
        assert!(handle.contains(&site.pool_id()), "{handle}");
        let managed = "/metadata/labels/snapshot.storage.kubernetes.io~1managed-by";
        assert_text(&content, managed, site.name());
        space.grow_in(&claim, &claim, "1Gi");
        let mib = space.mib(&claim, &format!("/{claim}"));
        assert!(mib > 850, "{mib} MiB");
        space.volume(&claim);
    }
    space.end();
}

/// A group's members are on one node. The status of a group over two nodes names both.
pub(crate) fn a_group_over_two_nodes_says_so(world: &World) {
    let space = Space::new(world, "torn");
    for site in world.sites() {
        let claim = format!("on-{}", site.count);
        let class = space.class(&claim, on_node(site.name()));
        space.claim(&claim, &class, json!({}));
        label(&space, &claim, "torn");
        space.volume(&claim);
    }
    group_snapshot(&space, "torn", "torn");
    world.until_is(
        "an error",
        ("VolumeGroupSnapshot", &space.name, "torn"),
        |group| {
            let said = text(group, "/status/error/message");
            world.sites().iter().all(|site| said.contains(site.name()))
        },
    );
    world.remove("VolumeGroupSnapshot", &space.name, "torn");
    space.end();
}

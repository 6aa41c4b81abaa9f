//! The capacity of each node, and its effects.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::objects::text;
use crate::rights::ACCOUNTS;
use crate::site::Site;
use crate::space::{Space, on_node};
use crate::world::{NAMESPACE, World};

/// Uses up space of a node with a volume of this size.
fn fill(space: &Space<'_>, site: &Site<'_>, named: &str, size: &str) {
    let class = space.class(named, on_node(site.name()));
    claim(space, named, &class, size);
    let volume = space.volume(named);
    assert_eq!(space.world.home(&volume).name(), site.name());
}

fn claim(space: &Space<'_>, named: &str, class: &str, size: &str) {
    let size = json!({"resources": {"requests": {"storage": size}}});
    space.claim(named, class, size);
}

/// The published capacity objects: the name, class and node of each.
fn told(world: &World) -> BTreeSet<(String, String)> {
    let all = world.list("CSIStorageCapacity", NAMESPACE);
    let named = |c: &Value| {
        let node = c["nodeTopology"]["matchLabels"].to_string();
        (
            text(c, "/metadata/uid").to_owned(),
            format!("{} {node}", text(c, "/storageClassName")),
        )
    };
    all.iter().map(named).collect()
}

/// [`told`], once the objects for deleted classes of earlier tests are gone.
fn settled(world: &World) -> BTreeSet<(String, String)> {
    let classes = world.list("StorageClass", "");
    let name = |class: &Value| text(class, "/metadata/name").to_owned();
    let classes: BTreeSet<_> = classes.iter().map(name).collect();
    world.until("what was told of other classes gone", || {
        let told = told(world);
        let class = |what: &str| what.split(' ').next().unwrap_or_default().to_owned();
        match told
            .iter()
            .find(|(_, what)| !classes.contains(&class(what)))
        {
            None => Ok(told),
            Some((_, what)) => Err(format!("still told: {what}")),
        }
    })
}

/// A claim that fits on only one node goes there. A claim that fits nowhere gets an event, and a
/// volume as soon as there is room.
pub(crate) fn claims_go_where_there_is_room(world: &World) {
    let space = Space::new(world, "narrow");
    // The pools have 8 GiB each. Their free space is below 2 and 8 GiB, then below 2 and 3 GiB.
    fill(&space, &world.site(1), "filler", "6Gi");
    claim(&space, "fits", "hostloop-xfs", "5Gi");
    space.pod("fits", &["fits"]);
    space.ready("fits");
    let second = world.site(2);
    assert_eq!(space.node_of("fits"), second.name());
    assert_eq!(world.home(&space.volume("fits")).name(), second.name());

    claim(&space, "late", "hostloop-xfs", "3328Mi");
    space.pod("late", &["late"]);
    space.event(
        "late",
        "FailedScheduling",
        "did not have enough free storage",
    );
    let class = space.class("now", json!({}));
    claim(&space, "now", &class, "3328Mi");
    space.event("now", "ProvisioningFailed", "");
    for waiting in ["late", "now"] {
        let phase = space.claim_now(waiting);
        assert_eq!(text(&phase, "/status/phase"), "Pending");
    }

    space.delete_claim("filler");
    space.ready("late");
    let first = world.site(1);
    for served in ["late", "now"] {
        assert_eq!(world.home(&space.volume(served)).name(), first.name());
    }
    space.end();
}

/// A selected node without room rejects the claim, and another node is selected.
pub(crate) fn a_claim_moves_on_from_a_full_node(world: &World) {
    let space = Space::new(world, "moves-on");
    fill(&space, &world.site(1), "filler", "6Gi");
    // The same happens if the scheduler decides from an outdated capacity.
    space.create(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "annotations":
            {"volume.kubernetes.io/selected-node": world.site(1).name()}},
        "spec": {"storageClassName": "hostloop-xfs", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "4Gi"}}}}));
    space.event("data", "ProvisioningFailed", "");
    space.pod("pod", &["data"]);
    space.ready("pod");
    let second = world.site(2);
    assert_eq!(space.node_of("pod"), second.name());
    assert_eq!(world.home(&space.volume("data")).name(), second.name());
    space.end();
}

/// The scheduler always has capacity objects while every pod of the driver is replaced.
pub(crate) fn the_room_is_told_over_an_upgrade(world: &World) {
    world.drivers_ready();
    let before = settled(world);
    assert!(before.len() >= 8, "four classes on two nodes: {before:?}");
    let asked = world.audit();
    let changed = format!("E2E_UPGRADE={}", std::process::id());
    let set = [
        "set",
        "env",
        "-n",
        NAMESPACE,
        "daemonset/hostloop",
        &changed,
    ];
    world.cluster().kubectl(&set);
    let done = [
        "rollout",
        "status",
        "-n",
        NAMESPACE,
        "daemonset/hostloop",
        "--timeout=10ms",
    ];
    world.until("the upgrade", || {
        let now = told(world);
        let lost: Vec<_> = before.difference(&now).collect();
        assert!(lost.is_empty(), "nothing is told any more of {lost:?}");
        world.cluster().try_kubectl(&done)
    });
    world.drivers_ready();
    assert_eq!(told(world), before);
    let audit = world.audit().since(&asked);
    let collector = "system:serviceaccount:kube-system:";
    for user in ACCOUNTS.into_iter().chain([collector]) {
        let counts = audit.counts(user);
        assert_eq!(
            counts.get(&("delete", "csistoragecapacities")),
            None,
            "{user}"
        );
    }
}

//! The capacity of each node, and its effects.

use std::collections::BTreeSet;

use hostloop_test::deployed::NAMESPACE;
use serde_json::{Value, json};

use crate::objects::{assert_text, name, text};
use crate::rights::ACCOUNTS;
use crate::site::Site;
use crate::space::{Space, on_node};
use crate::world::{World, check};

/// Uses up space of a node with a volume of this size.
fn fill(space: &Space<'_>, site: &Site<'_>, named: &str, size: &str) {
    let class = space.class(named, on_node(site.name()));
    space.sized(named, &class, size);
    let volume = space.volume(named);
    assert_eq!(space.world.home(&volume).name(), site.name());
}

/// The published capacity objects: the name, class and node of each.
fn published(world: &World) -> BTreeSet<(String, String)> {
    let all = world.list("CSIStorageCapacity", NAMESPACE);
    let named = |c: &Value| {
        let (uid, class) = (text(c, "/metadata/uid"), text(c, "/storageClassName"));
        let node = &c["nodeTopology"]["matchLabels"];
        (uid.to_owned(), format!("{class} {node}"))
    };
    all.iter().map(named).collect()
}

/// [`published`], once the objects for deleted classes of earlier tests are gone, and those of the
/// manifest's four classes are there on both nodes.
fn settled(world: &World) -> BTreeSet<(String, String)> {
    let classes = world.list("StorageClass", "");
    let classes: BTreeSet<_> = classes.iter().map(|c| name(c).to_owned()).collect();
    world.until("the capacity for the classes that exist", || {
        let published = published(world);
        let class = |what: &str| what.split(' ').next().unwrap_or_default().to_owned();
        let mut all = published.iter();
        if let Some((_, what)) = all.find(|(_, what)| !classes.contains(&class(what))) {
            return Err(format!("still published: {what}"));
        }
        check(published.len() >= 8, || format!("{published:?}"))?;
        Ok(published)
    })
}

/// A claim that fits on only one node goes there. A claim that fits nowhere gets an event, and a
/// volume as soon as there is room.
pub(crate) fn claims_go_where_there_is_room(world: &World) {
    let space = Space::new(world, "narrow");
    // The pools have 12 GiB each. Their free space is below 3 and 12 GiB, then below 3 and 4 GiB.
    fill(&space, &world.site(1), "filler", "9Gi");
    space.sized("fits", "hostloop-xfs", "8Gi");
    space.run("fits", &["fits"]);
    let second = world.site(2);
    assert_eq!(space.node_of("fits"), second.name());
    assert_eq!(world.home(&space.volume("fits")).name(), second.name());

    space.sized("late", "hostloop-xfs", "5Gi");
    space.pod("late", &["late"]);
    let full = "did not have enough free storage";
    space.event("late", "FailedScheduling", full);
    let class = space.class("now", json!({}));
    space.sized("now", &class, "5Gi");
    space.event("now", "ProvisioningFailed", "");
    for waiting in ["late", "now"] {
        assert_text(&space.claim_now(waiting), "/status/phase", "Pending");
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
    fill(&space, &world.site(1), "filler", "9Gi");
    // The same happens if the scheduler decides from an outdated capacity.
    space.selected("data", world.site(1).name(), "6Gi");
    space.event("data", "ProvisioningFailed", "");
    space.run("pod", &["data"]);
    let second = world.site(2);
    assert_eq!(space.node_of("pod"), second.name());
    assert_eq!(world.home(&space.volume("data")).name(), second.name());
    space.end();
}

/// The scheduler always has capacity objects while every pod of the driver is replaced.
pub(crate) fn capacity_stays_published_over_an_upgrade(world: &World) {
    world.drivers_ready();
    let before = settled(world);
    let there = world.list("CSIStorageCapacity", NAMESPACE);
    let there: BTreeSet<&str> = there.iter().map(name).collect();
    let asked = world.audit();
    let changed = format!("E2E_UPGRADE={}", std::process::id());
    world.set_env("daemonset/hostloop", &[&changed]);
    world.until("the upgrade", || {
        let now = published(world);
        let lost: Vec<_> = before.difference(&now).collect();
        assert!(lost.is_empty(), "no longer published: {lost:?}");
        let set = world.get("DaemonSet", NAMESPACE, "hostloop");
        let status = &set["status"];
        let all = &status["desiredNumberScheduled"];
        let is_done = status["observedGeneration"] == set["metadata"]["generation"]
            && status["updatedNumberScheduled"] == *all
            && status["numberAvailable"] == *all;
        check(is_done, || status.to_string())
    });
    world.drivers_ready();
    assert_eq!(published(world), before);
    let audit = world.audit().since(&asked);
    let collector = "system:serviceaccount:kube-system:";
    for user in ACCOUNTS.into_iter().chain([collector]) {
        // The log may show only now that objects of earlier classes were deleted.
        let mut deleted = audit.of(user);
        deleted.retain(|r| {
            r.verb == "delete"
                && r.resource == "csistoragecapacities"
                && there.contains(r.name.as_str())
        });
        assert!(deleted.is_empty(), "{user}: {deleted:?}");
    }
}

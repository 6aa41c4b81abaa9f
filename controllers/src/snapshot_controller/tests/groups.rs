//! What groups read, and what wakes them.

use super::*;
use crate::testing::{DRIVER, volume, with};

fn group(name: &str, source: Value, more: Value) -> Value {
    let group = json!({
        "apiVersion": format!("{GROUP_SNAPSHOT_GROUP}/v1"), "kind": "VolumeGroupSnapshot",
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"source": source},
    });
    with(group, more)
}

fn selector(app: &str) -> Value {
    json!({"selector": {"matchLabels": {"app": app}}})
}

/// Adds a claim with this label, and its volume.
fn claim(world: &World, name: &str, app: &str, more: &Value) {
    let caches = &world.context.caches;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "team", "uid": name, "labels": {"app": app}},
        "spec": {"volumeName": name}, "status": {"phase": "Bound"},
    });
    world.add(&caches.claims(), with(claim, more));
    let of = json!({"spec": {"claimRef": {"namespace": "team", "name": name, "uid": name}}});
    world.add(&caches.volumes(), with(volume(name, DRIVER, name), of));
}

/// What a group of the claims with the label `db` reads of them: volumes, or why there is none.
async fn read_sources(controller: &SnapshotController, more: Value) -> Vec<String> {
    let group = crate::testing::read(group("g", selector("db"), more));
    let facts = controller
        .watches
        .gather::<Groups>(&controller.kube, Arc::new(group))
        .await;
    let sources = facts.expect("an answer").own.sources.into_iter();
    sources
        .map(|source| source.map_or_else(|why| why, |source| source.volume))
        .collect()
}

#[tokio::test]
async fn a_bound_claim_wakes_the_groups_that_select_it() {
    let world = World::new(&[]);
    let controller = controller(&world);
    let groups = &controller.watches.groups;
    let ready = json!({"status": {"readyToUse": true}});
    let given = json!({"volumeGroupSnapshotContentName": "given"});
    let near = json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Near"}]}});
    let within = json!({"selector": {"matchExpressions": [
        {"key": "app", "operator": "In", "values": ["web", "db"]}]}});
    for (name, source, more) in [
        ("fits", selector("db"), json!({})),
        ("other", selector("web"), json!({})),
        ("all", json!({"selector": {}}), json!({})),
        ("ready", selector("db"), ready),
        ("given", given, json!({})),
        ("within", within, json!({})),
        ("wrong", near, json!({})),
    ] {
        world.add(groups, group(name, source, more));
    }
    claim(&world, "data", "db", &json!({}));
    let key = SnapshotKey::Claim("team".to_owned(), "data".to_owned());
    assert_eq!(controller.work(key).await, Outcome::Done);
    let woken = ["all", "fits", "within"]
        .map(|name| SnapshotKey::Group("team".to_owned(), name.to_owned()));
    assert_eq!(controller.queue.ready_keys(), woken);
}

/// The API server went back to a backup in which the group lives, and the cache does not show it
/// yet. The deletion of a member could not be taken back.
#[tokio::test]
async fn no_member_goes_with_a_group_that_is_not_deleted_any_more() {
    let owner = json!({"apiVersion": format!("{GROUP_SNAPSHOT_GROUP}/v1"),
        "kind": "VolumeGroupSnapshot", "name": "g", "uid": "g"});
    let member = json!({
        "apiVersion": format!("{SNAPSHOT_GROUP}/v1"), "kind": "VolumeSnapshot",
        "metadata": {"name": "member", "namespace": "team", "ownerReferences": [owner],
            "finalizers": [names::SNAPSHOT_IN_GROUP]},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
    });
    let going = json!({"metadata": {"deletionTimestamp": DELETED,
        "finalizers": [names::GROUP_BOUND]}});
    for (deleted, goes) in [(json!(DELETED), true), (Value::Null, false)] {
        let world = World::new(&[]);
        let controller = controller(&world);
        let cached = group("g", selector("db"), going.clone());
        world.add(&controller.watches.groups, cached.clone());
        world.add(&controller.watches.snapshots, member.clone());
        let now = json!({"metadata": {"deletionTimestamp": deleted}});
        world.api.put(with(cached, now));
        let key = SnapshotKey::Group("team".to_owned(), "g".to_owned());
        let worked = controller.work(key).await;
        let left = world.api.get("volumesnapshots/member");
        let left = left.expect("the member");
        let is_deleted = !left["metadata"]["deletionTimestamp"].is_null();
        assert_eq!(is_deleted, goes, "{deleted}: {worked:?}");
    }
}

/// A group without a content reads the claims that it selects, up to the first that is not usable.
#[tokio::test]
async fn what_a_group_reads() {
    let none = json!({});
    let pending = json!({"spec": {"volumeName": null}, "status": {"phase": "Pending"}});
    let deleted = json!({"metadata": {"deletionTimestamp": DELETED}});
    let lost = json!({"spec": {"volumeName": "lost"}});
    let not_bound = "claim b is not bound to a volume yet";
    let no_volume = "the volume of claim b does not exist";
    for (b, more, has_content, expected) in [
        (&none, &none, false, &["a", "b", "d"][..]),
        (&pending, &none, false, &[not_bound]),
        (&lost, &none, false, &["a", no_volume]),
        (&none, &none, true, &[]),
        (&none, &deleted, false, &[]),
    ] {
        let world = World::new(&[]);
        let controller = controller(&world);
        for (name, app, more) in [
            ("a", "db", &none),
            ("b", "db", b),
            ("c", "web", &none),
            ("d", "db", &none),
        ] {
            claim(&world, name, app, more);
        }
        let content = json!({
            "apiVersion": format!("{GROUP_SNAPSHOT_GROUP}/v1"), "kind": "VolumeGroupSnapshotContent",
            "metadata": {"name": names::group_content_name("g")},
            "spec": {"volumeGroupSnapshotRef": {}, "deletionPolicy": "Delete", "driver": DRIVER,
                "source": {"volumeHandles": ["a"]}},
        });
        if has_content {
            world.add(&controller.watches.group_contents, content.clone());
        }
        // A group that is being deleted asks for its content.
        world.api.put(content);
        let read = read_sources(&controller, more.clone()).await;
        assert_eq!(read, expected, "{b} {more} {has_content}");
    }
}

/// The selector may fit a claim of which only the name is known.
#[tokio::test]
async fn a_group_is_not_made_without_a_claim_that_is_too_large() {
    let large =
        "claim large of this namespace is too large to be read, and the selector may fit it";
    for (namespace, expected) in [("team", &["a", large][..]), ("teams", &["a"])] {
        let world = World::new(&[]);
        let controller = controller(&world);
        claim(&world, "a", "db", &json!({}));
        controller.watches.claims.note_left_out(namespace, "large");
        let read = read_sources(&controller, json!({})).await;
        assert_eq!(read, expected, "{namespace}");
    }
}

/// Where too many namespaces have claims that are left out, any of them may: the API server knows.
#[tokio::test]
async fn a_group_is_made_if_the_claims_that_are_left_out_are_of_other_namespaces() {
    let large = "claim b of this namespace is too large to be read, and the selector may fit it";
    for (namespace, expected) in [("other", &["a"][..]), ("team", &["a", large])] {
        let world = World::new(&[]);
        let controller = controller(&world);
        claim(&world, "a", "db", &json!({}));
        world.api.put(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "b", "namespace": namespace, "uid": "b"},
        }));
        controller.watches.claims.note_left_out_anywhere();
        let read = read_sources(&controller, json!({})).await;
        assert_eq!(read, expected, "{namespace}");
    }
}

/// Each reconcile would list them, and the group waits for the claim anyway.
#[tokio::test]
async fn a_group_with_a_claim_that_is_not_usable_lists_no_claims() {
    let pending = json!({"spec": {"volumeName": null}, "status": {"phase": "Pending"}});
    for (more, expected) in [(json!({}), 1), (pending, 0)] {
        let world = World::new(&[]);
        let controller = controller(&world);
        claim(&world, "a", "db", &more);
        controller.watches.claims.note_left_out_anywhere();
        let read = read_sources(&controller, json!({})).await;
        assert_eq!(read.len(), 1, "{more}");
        let lists = world.api.lists();
        let of_claims = lists
            .iter()
            .filter(|list| list.starts_with("persistentvolumeclaims"));
        assert_eq!(of_claims.count(), expected, "{more}: {lists:?}");
    }
}

use serde_json::json;
use tonic::Status;

use super::*;
use crate::csi::driver::ControllerCapability::*;
use crate::testing::{Call, DRIVER, World, attachment, csi_node, entry, node_scope, volume, with};

fn world() -> (World, Attacher) {
    let world = World::new(&[
        PublishUnpublishVolume,
        ListVolumes,
        ListVolumesPublishedNodes,
    ]);
    let attacher = Attacher::new(world.context.clone());
    world.add(&attacher.csi_nodes, csi_node("n1", DRIVER, "t/node"));
    for (handle, attached) in [("a", true), ("b", false), ("c", true), ("d", false)] {
        let name = format!("pv-{handle}");
        world.add(&attacher.volumes, volume(&name, DRIVER, handle));
        for (prefix, attacher_name) in [("va", DRIVER), ("other", "other")] {
            let attachment = attachment(&format!("{prefix}-{handle}"), &name, "n1");
            let more =
                json!({"spec": {"attacher": attacher_name}, "status": {"attached": attached}});
            world.add(&attacher.attachments, with(attachment, more));
        }
    }
    (world, attacher)
}

#[tokio::test]
async fn attachments_that_differ_are_queued() {
    let (world, attacher) = world();
    // The driver agrees on a and d. It contradicts b (attached) and c (on another node).
    world
        .script
        .page(vec![entry("a", &["n0", "n1"]), entry("b", &["n1"])], "2");
    world
        .script
        .page(vec![entry("c", &["n2"]), entry("d", &[])], "");
    attacher.compare(2).await;
    let forced: Vec<String> = attacher.forced.lock().iter().cloned().collect();
    assert_eq!(forced, ["va-b", "va-c"]);
    assert_eq!(attacher.queue.depth(), 2);
    let tokens: Vec<_> = world
        .script
        .calls()
        .into_iter()
        .map(|call| match call {
            Call::List(request) => (request.max_entries, request.starting_token),
            call => panic!("{call:?}"),
        })
        .collect();
    assert_eq!(tokens, [(2, String::new()), (2, "2".to_owned())]);
}

#[tokio::test]
async fn volumes_outside_the_watch_are_compared_if_they_are_of_this_node() {
    use crate::cache::store::Selector;
    use crate::csi::Pools;
    for (handle, forced) in [("vol-a1-0", true), ("vol-b2-0", false)] {
        let (world, mut attacher) = world();
        attacher.context.scope = node_scope("n1", "t/node");
        attacher.context.pools = Pools::reported(|| vec!["a1".to_owned()]);
        let label = Selector::label("node", "n1".to_owned());
        attacher.volumes.note_selected(label);
        world.api.put(volume("unseen", DRIVER, handle));
        let unseen = attachment("unseen", "unseen", "n1");
        let unseen = with(unseen, json!({"status": {"attached": true}}));
        world.add(&attacher.attachments, unseen);
        world.script.page(vec![], "");
        attacher.compare(0).await;
        let all: Vec<String> = attacher.forced.lock().iter().cloned().collect();
        assert_eq!(all.contains(&"unseen".to_owned()), forced, "{all:?}");
    }
}

#[tokio::test]
async fn an_incomplete_list_changes_nothing() {
    let (world, attacher) = world();
    world.script.fail(Status::aborted("token"));
    attacher.compare(0).await;
    world.script.page(vec![], "1");
    world.script.page(vec![], "1");
    attacher.compare(0).await;
    assert_eq!(attacher.queue.depth(), 0);
}

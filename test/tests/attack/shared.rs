//! Volumes that all nodes of a kernel can use. With `ATTACK_SHARED_KERNEL`, the stolen node shares its
//! kernel with the other one. Without, it shares it with none. The third node never shares it.

use hostloop_test::front::objects::{self, Place};
use kube::api::{DeleteParams, DynamicObject, Patch};
use serde_json::{Value, json};

use crate::installation::Installation;
use crate::site::{Site, dry_patch, dry_post, message};
use crate::table::Outcome::{self, No, Yes};
use crate::target::{KEEP, Target};

const NODE_LABEL: &str = "hostloop.csi.dev/node";

/// The outcome in this run, of the outcomes with a shared kernel and without.
fn expected(shared: Outcome, alone: Outcome) -> Outcome {
    if Installation::of_run().shares_kernel {
        shared
    } else {
        alone
    }
}

/// The change of a volume that these nodes can use. Without a label, it has none.
fn placed(nodes: &[&str], reach: &str, label: &str) -> Value {
    let label = Some(label).filter(|label| !label.is_empty());
    let key = Installation::of_run().topology_key;
    let terms: Vec<Value> = nodes
        .iter()
        .map(|node| json!({"matchExpressions": [{"key": key, "operator": "In", "values": [node]}]}))
        .collect();
    json!({
        "metadata": {"labels": {NODE_LABEL: label}},
        "spec": {
            "csi": {"volumeAttributes": {"reach": reach}},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    })
}

fn said<T>(answer: Result<T, kube::Error>) -> Result<(), String> {
    answer.map(drop).map_err(|error| message(&error))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_makes_volumes_for_its_own_kernel_alone() {
    const ELSEWHERE: &str = "a new volume has to be on node";
    const REACH: &str = "has to be of a class with reach kernel";
    const LABEL: &str = "a new volume has no label but that of its node";
    const UNLABELLED: &str = "a new volume on several nodes has to have the label of its node";
    let site = Site::up().await;
    let names = &site.names;
    let (own, other, third) = (&*names.own, &*names.other, &*names.third);
    let volumes = site.volumes();
    let mut wrong = Vec::new();
    for (nodes, reach, label, shared, alone) in [
        (&[own][..], "kernel", own, Yes, Yes),
        (&[own, other], "kernel", own, Yes, No(ELSEWHERE)),
        (&[other, own], "kernel", own, Yes, No(ELSEWHERE)),
        (&[own, other], "node", own, No(REACH), No(ELSEWHERE)),
        (&[own, own], "node", own, No(REACH), No(REACH)),
        (&[own, other], "kernel", other, No(LABEL), No(ELSEWHERE)),
        (&[own], "kernel", "", Yes, Yes),
        (&[own, other], "kernel", "", No(UNLABELLED), No(ELSEWHERE)),
        (&[other], "kernel", own, No(ELSEWHERE), No(ELSEWHERE)),
        (&[other], "kernel", other, No(ELSEWHERE), No(ELSEWHERE)),
        (&[own, third], "kernel", own, No(ELSEWHERE), No(ELSEWHERE)),
        (
            &[own, other, third],
            "kernel",
            own,
            No(ELSEWHERE),
            No(ELSEWHERE),
        ),
        (&[own, ""], "kernel", own, No(ELSEWHERE), No(ELSEWHERE)),
    ] {
        let new = names.new_object("persistentvolumes", Target::Own);
        let new = objects::with(new.expect("a node makes it"), placed(nodes, reach, label));
        let new: DynamicObject = serde_json::from_value(new).expect("it is an object");
        let found = said(volumes.create(&dry_post(), &new).await);
        if let Some(why) = expected(shared, alone).differs_from(&found) {
            wrong.push(format!("{nodes:?} {reach} {label}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_changes_attachments_of_its_own_volumes_to_its_own_kernel_alone() {
    const ELSEWHERE: &str = "the attachment is not one to node";
    let site = Site::up().await;
    let names = &site.names;
    let (own, other, third) = (&*names.own, &*names.other, &*names.third);
    let attachments = names.api(&site.node, "volumeattachments");
    let mut wrong = Vec::new();
    for (number, (to, label, shared, alone)) in [
        (own, None, Yes, Yes),
        (own, Some(own), Yes, Yes),
        // Of a volume that the other node has, which says where its device is.
        (own, Some(other), No(ELSEWHERE), No(ELSEWHERE)),
        (other, Some(own), Yes, No(ELSEWHERE)),
        // Of a volume that the other node has, or that is not known.
        (other, Some(other), No(ELSEWHERE), No(ELSEWHERE)),
        (other, None, No(ELSEWHERE), No(ELSEWHERE)),
        (third, Some(own), No(ELSEWHERE), No(ELSEWHERE)),
        (third, Some(third), No(ELSEWHERE), No(ELSEWHERE)),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("{}-shared-{number}", names.run);
        let change = json!({
            "metadata": {"name": name, "labels": {NODE_LABEL: label}}, "spec": {"nodeName": to},
        });
        let attachment = names.object("volumeattachments", Target::Own);
        let attachment = objects::with(attachment.expect("there is one"), change);
        site.admin.create(attachment).await;
        let context: Value = (0..10).map(|n| (format!("key-{n}"), json!("x"))).collect();
        let attached = json!({"status": {"attached": true, "attachmentMetadata": context}});
        let detached = json!({"metadata": {
            "finalizers": [KEEP], "annotations": {"csi.alpha.kubernetes.io/node-id": "x"}}});
        let params = dry_patch();
        let patch = Patch::Merge(&attached);
        let status = said(attachments.patch_status(&name, &params, &patch).await);
        let patch = Patch::Merge(&detached);
        let detached = said(attachments.patch(&name, &params, &patch).await);
        for found in [status, detached] {
            if let Some(why) = expected(shared, alone).differs_from(&found) {
                wrong.push(format!("to {to}, label {label:?}: {why}"));
            }
        }
        let relabelled = json!({"metadata": {"labels": {NODE_LABEL: "x"}}});
        let patch = Patch::Merge(&relabelled);
        let relabelled = attachments.patch(&name, &params, &patch).await;
        assert!(said(relabelled).is_err(), "to {to}, label {label:?}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// All nodes of a kernel can use a volume, and one of them has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_changes_no_volume_that_another_one_has() {
    const ELSEWHERE: &str = "the volume is not on node";
    const LABEL: &str = "no label of a volume but its own name's";
    let site = Site::up().await;
    let names = &site.names;
    let nodes = [&*names.own, &*names.other];
    let volumes = site.volumes();
    for (owner, grown, relabelled) in [
        (&*names.own, Yes, No(LABEL)),
        (&*names.other, No(ELSEWHERE), No(ELSEWHERE)),
    ] {
        let volume = names.object("persistentvolumes", Target::Own);
        let mut volume = objects::with(
            volume.expect("there is one"),
            placed(&nodes, "kernel", owner),
        );
        volume["metadata"]["name"] = json!(format!("{}-of-{owner}", names.run));
        let at = Place::of_object(&site.admin.create(volume).await);
        let another = nodes.into_iter().find(|node| *node != owner);
        let label = json!({"metadata": {"labels": {NODE_LABEL: another}}});
        let size = json!({"spec": {"capacity": {"storage": "2Gi"}}});
        let (params, delete) = (dry_patch(), DeleteParams::default().dry_run());
        let patch = Patch::Merge(&size);
        let size = said(volumes.patch(&at.name, &params, &patch).await);
        let patch = Patch::Merge(&label);
        let label = said(volumes.patch(&at.name, &params, &patch).await);
        let deleted = said(volumes.delete(&at.name, &delete).await);
        let differs = [
            grown.differs_from(&size),
            grown.differs_from(&deleted),
            relabelled.differs_from(&label),
        ];
        let differs: Vec<String> = differs.into_iter().flatten().collect();
        assert!(differs.is_empty(), "of {owner}: {differs:#?}");
    }
}

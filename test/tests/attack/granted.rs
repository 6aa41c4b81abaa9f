//! A role that grants more than the node account needs, as one of an earlier version or a mistake of an
//! administrator: the policy for everything else refuses what it grants.

use hostloop_test::front::objects::{self, Place};
use hostloop_test::front::wait::{PATIENCE, until};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch};
use serde_json::{Value, json};

use crate::site::{Site, dry_patch, dry_post};
use crate::target::Target;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Has the account granted everything in a namespace of its own, where no row of the table is tried, and
/// classes, which no row tries. Returns the namespace.
async fn grant_everything(site: &Site) -> String {
    let name = format!("{}-granted", site.names.run);
    let subjects = json!([{"kind": "ServiceAccount", "name": "hostloop", "namespace": "hostloop"}]);
    let role = |name: &str, groups: &str, resources: Value, verbs: &str| {
        json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": {"name": name},
            "rules": [{"apiGroups": [groups], "resources": resources, "verbs": [verbs]}]})
    };
    let binding = |kind: &str, namespace: Option<&str>, role: &str| {
        json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind,
            "metadata": {"name": role, "namespace": namespace}, "subjects": subjects,
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}})
    };
    let classes = format!("{name}-classes");
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        role(&name, "*", json!(["*"]), "*"),
        binding("RoleBinding", Some(&name), &name),
        role(
            &classes,
            "storage.k8s.io",
            json!(["storageclasses"]),
            "create",
        ),
        binding("ClusterRoleBinding", None, &classes),
    ] {
        site.cluster().apply(&object.to_string());
    }
    name
}

/// A node's request; the words of the refusal.
async fn refused(what: &str, request: impl Future<Output = Result<(), kube::Error>>) -> String {
    match request.await {
        Err(kube::Error::Api(status)) => status.message.clone(),
        Err(error) => panic!("{what}: the server could not be asked: {error}"),
        Ok(()) => "let through".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_grants_too_much_gives_a_node_nothing() {
    let site = Site::up().await;
    let namespace = grant_everything(&site).await;
    let object = |resource: &str| {
        let mut object = site.names.object(resource, Target::Own).expect("an object");
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["finalizers"] = Value::Null;
        object
    };
    for resource in ["persistentvolumeclaims", "volumesnapshots"] {
        site.admin.create(object(resource)).await;
    }
    let name = site.names.of(Target::Own);
    let node: &Client = site.node();
    let api = |resource: &str| -> Api<DynamicObject> {
        let (resource, _) = objects::resource(resource);
        Api::namespaced_with(node.clone(), &namespace, &resource)
    };
    // The roles have to be in force, or they would be what refuses.
    let (maps, claims, snapshots) = (
        api("configmaps"),
        api("persistentvolumeclaims"),
        api("volumesnapshots"),
    );
    let classes: Api<DynamicObject> =
        Api::all_with(node.clone(), &objects::resource("storageclasses").0);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}});
    let map = || serde_json::from_value::<DynamicObject>(map.clone()).expect("it is an object");
    let class = serde_json::from_value::<DynamicObject>(site.names.foreign_class());
    let mut class = class.expect("it is an object");
    class.metadata.name = Some("x".to_owned());
    for (what, api, object) in [("maps", &maps, map()), ("classes", &classes, class.clone())] {
        let granted = || async {
            let why = refused(what, async {
                api.create(&dry_post(), &object).await.map(drop)
            });
            (!why.await.contains("cannot")).then_some(())
        };
        let granted = until(PATIENCE, granted).await;
        granted.unwrap_or_else(|| panic!("the role for {what} comes into force"));
    }

    let mut new = object("volumesnapshots");
    new["metadata"]["name"] = json!("new");
    let new: DynamicObject = serde_json::from_value(new).expect("it is an object");
    let told = json!({"status": {"boundVolumeSnapshotContentName": "x"}});
    let told = Patch::Merge(&told);
    let token =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let (post, patch, delete) = (dry_post(), dry_patch(), DeleteParams::default().dry_run());
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(node.clone(), &namespace);
    let wrong: Vec<String> = [
        (
            "a node may not CREATE configmaps",
            refused("a map", async {
                maps.create(&post, &map()).await.map(drop)
            })
            .await,
        ),
        (
            "a node may not CREATE storageclasses",
            refused("a class", async {
                classes.create(&post, &class).await.map(drop)
            })
            .await,
        ),
        (
            "a node may not DELETE persistentvolumeclaims",
            refused("a claim", async {
                claims.delete(&name, &delete).await.map(drop)
            })
            .await,
        ),
        (
            "a node may not CREATE volumesnapshots",
            refused("a snapshot", async {
                snapshots.create(&post, &new).await.map(drop)
            })
            .await,
        ),
        (
            "a node may not UPDATE volumesnapshots",
            refused("its status", async {
                snapshots.patch_status(&name, &patch, &told).await.map(drop)
            })
            .await,
        ),
        (
            "a node may not CREATE serviceaccounts",
            refused("a token", async {
                let made = accounts.create_subresource("token", "default", &post, &token);
                made.await.map(|_: Value| ())
            })
            .await,
        ),
    ]
    .into_iter()
    .filter(|(expected, found)| !found.contains(expected))
    .map(|(expected, found)| format!("{expected}: {found}"))
    .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let at = Place::of("PersistentVolumeClaim", &namespace, &name);
    assert!(site.admin.get(&at).await.is_some(), "the claim is there");
}

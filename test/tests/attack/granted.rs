//! A role that grants more than the node account needs, from an earlier version or by a mistake of
//! an administrator: the policy for everything else refuses what it grants.

use hostloop_test::PATIENCE;
use hostloop_test::front::objects::{self, Place};
use hostloop_test::front::wait::until;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch};
use serde_json::{Value, json};

use crate::installation::Installation;
use crate::site::{Site, dry_patch, dry_post};
use crate::target::Target;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Grants the account everything in a new namespace, and to create classes: no row of the table
/// tries these. Returns the namespace.
async fn grant_everything(site: &Site) -> String {
    let name = format!("{}-granted", site.names.run);
    let home = Installation::of_run().namespace;
    let subjects = json!([{"kind": "ServiceAccount", "name": "hostloop", "namespace": home}]);
    let role = |name: &str, groups: &str, resources: Value, verbs: &str| {
        json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [{"apiGroups": [groups], "resources": resources, "verbs": [verbs]}]})
    };
    let binding = |kind: &str, namespace: Option<&str>, role: &str| {
        json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind,
            "metadata": {"name": role, "namespace": namespace}, "subjects": subjects,
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}})
    };
    let classes = format!("{name}-classes");
    for object in [
        objects::named("Namespace", &name),
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
        site.cluster.apply(&object.to_string());
    }
    name
}

/// The words with which the API server refused a request.
fn refused<T>(result: Result<T, kube::Error>) -> String {
    match result {
        Err(kube::Error::Api(status)) => status.message.clone(),
        Err(error) => panic!("the server could not be asked: {error}"),
        Ok(_) => "let through".to_owned(),
    }
}

fn typed(object: Value) -> DynamicObject {
    serde_json::from_value(object).expect("it is an object")
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
    let node: &Client = &site.node;
    let api = |resource: &str| -> Api<DynamicObject> {
        let (resource, _) = objects::resource(resource);
        Api::namespaced_with(node.clone(), &namespace, &resource)
    };
    let maps = api("configmaps");
    let claims = api("persistentvolumeclaims");
    let snapshots = api("volumesnapshots");
    let classes: Api<DynamicObject> =
        Api::all_with(node.clone(), &objects::resource("storageclasses").0);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}});
    let map = typed(map);
    let mut class = typed(site.names.foreign_class());
    class.metadata.name = Some("x".to_owned());
    let (post, patch, delete) = (dry_post(), dry_patch(), DeleteParams::default().dry_run());
    // The roles have to be in force, or they would be what refuses.
    for (what, api, object) in [("maps", &maps, &map), ("classes", &classes, &class)] {
        let granted = || async {
            let why = refused(api.create(&post, object).await);
            (!why.contains("cannot")).then_some(())
        };
        let granted = until(PATIENCE, granted).await;
        granted.unwrap_or_else(|| panic!("the role for {what} comes into force"));
    }

    let mut new = object("volumesnapshots");
    new["metadata"]["name"] = json!("new");
    let new = typed(new);
    let bound = json!({"status": {"boundVolumeSnapshotContentName": "x"}});
    let bound = Patch::Merge(&bound);
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(node.clone(), &namespace);
    let token =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let token = accounts.create_subresource::<_, Value>("token", "default", &post, &token);
    let map = maps.create(&post, &map).await;
    let class = classes.create(&post, &class).await;
    let claim = claims.delete(&name, &delete).await;
    let snapshot = snapshots.create(&post, &new).await;
    let status = snapshots.patch_status(&name, &patch, &bound).await;
    let mut wrong = vec![
        ("CREATE configmaps", refused(map)),
        ("CREATE storageclasses", refused(class)),
        ("DELETE persistentvolumeclaims", refused(claim)),
        ("CREATE volumesnapshots", refused(snapshot)),
        ("UPDATE volumesnapshots", refused(status)),
        ("CREATE serviceaccounts", refused(token.await)),
    ];
    wrong.retain(|(request, why)| !why.contains(&format!("a node may not {request}")));
    assert!(wrong.is_empty(), "{wrong:#?}");
    let at = Place::of("PersistentVolumeClaim", &namespace, &name);
    assert!(site.admin.get(&at).await.is_some(), "the claim is there");
}

//! The attacked cluster: the deployed manifest, two nodes, tokens of the node account, and one
//! object of each kind per target.

use std::path::{Path, PathBuf};

use hostloop_test::PATIENCE;
use hostloop_test::cluster::account::{self, write_kubeconfig};
use hostloop_test::cluster::{self, Cluster};
use hostloop_test::deployed::NAMESPACE;
use hostloop_test::front::objects::{self, Objects, Place};
use hostloop_test::front::wait::until;
use kube::api::{
    DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Request, WatchParams,
};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::installation::{Installation, named};
use crate::table::{self, Attack, Read};
use crate::target::{Names, Target};

/// The resources with an object for each target.
const ATTACKED: [&str; 8] = [
    "persistentvolumes",
    "persistentvolumeclaims",
    "volumeattachments",
    "csistoragecapacities",
    "events",
    "volumesnapshots",
    "volumesnapshotcontents",
    "volumegroupsnapshotcontents",
];
const ACCOUNT: &str = "hostloop";

/// Shared by all tests until the process ends.
struct Ground {
    cluster: Cluster,
    names: Names,
    /// Kubeconfigs of the node account.
    bound: PathBuf,
    unbound: PathBuf,
}

/// The cluster and its users. A client only works in the test that made it.
pub(crate) struct Site {
    ground: &'static Ground,
    pub(crate) cluster: &'static Cluster,
    pub(crate) names: Names,
    pub(crate) admin: Objects,
    /// A client of the node account on the stolen node.
    pub(crate) node: Client,
    /// A client of the node account with a token that names no node.
    pub(crate) unbound: Client,
}

impl Ground {
    /// Creates the cluster and the attacked objects.
    async fn lay() -> Ground {
        let run = format!("attack-{}", std::process::id());
        let names = Names {
            own: format!("{run}-n1"),
            other: format!("{run}-n2"),
            third: format!("{run}-n3"),
            run,
        };
        let cluster = tokio::task::block_in_place(|| installed(&names));
        let client = cluster.client().await;
        let home = Installation::of_run().namespace;
        account::node_pod(&client, home, &names.run, &names.own).await;
        let kubeconfig = async |name: &str, pod: Option<&str>| {
            let file = cluster.kubeconfig().with_file_name(name);
            let token = account::token(&client, home, ACCOUNT, pod).await;
            write_kubeconfig(&cluster.kubeconfig(), &token, &file);
            file
        };
        let bound = kubeconfig("bound", Some(&names.run)).await;
        let unbound = kubeconfig("unbound", None).await;
        let ground = Ground {
            bound,
            unbound,
            names,
            cluster,
        };
        let admin = Objects::connect(&ground.cluster.kubeconfig()).await;
        admin.create(ground.names.foreign_class()).await;
        if Installation::of_run().shares_kernel {
            admin.create(ground.names.kernels()).await;
        }
        for resource in ATTACKED {
            for target in Target::ALL {
                let Some(object) = ground.names.object(resource, target) else {
                    continue;
                };
                let at = Place::of_object(&admin.create(object).await);
                if let Some(status) = ground.names.status(resource) {
                    admin.merge_status(&at, status).await;
                }
            }
        }
        let node = objects::client(&ground.bound).await;
        in_force(&node, &ground.names).await;
        ground
    }
}

/// Waits until the API server applies the roles, which would be what refuses, and the policies.
async fn in_force(node: &Client, names: &Names) {
    for read in table::reads() {
        for verb in read.verbs {
            let granted = || async { read_as(node, verb, &read).await.ok() };
            let granted = until(PATIENCE, granted).await;
            granted.unwrap_or_else(|| panic!("no role for {verb} {} is in force", read.resource));
        }
    }
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    for resource in ATTACKED {
        let api = names.api(node, resource);
        let name = names.of(Target::Foreign);
        let denied = || async {
            let params = dry_patch();
            let patched = api.patch(&name, &params, &Patch::Merge(&label)).await;
            patched.is_err().then_some(())
        };
        until_in_force(resource, denied).await;
    }
    // Without the list of kernels, the policies refuse what a node may do.
    for resource in ["persistentvolumes", "volumeattachments"] {
        let api = names.api(node, resource);
        let name = names.of(Target::Own);
        let taken = || async {
            let patched = api
                .patch(&name, &dry_patch(), &Patch::Merge(json!({})))
                .await;
            patched.ok().map(drop)
        };
        until_in_force(resource, taken).await;
    }
    let volumes = names.api(node, "persistentvolumes");
    let volume = names.new_object("persistentvolumes", Target::Own);
    let volume = serde_json::from_value(volume.expect("a node makes it")).expect("it is an object");
    let taken = || async {
        let made = volumes.create(&dry_post(), &volume).await;
        made.ok().map(drop)
    };
    until_in_force("new volumes", taken).await;
    // This one looks at classes, too, and may take longer.
    let rooms = names.api(node, "csistoragecapacities");
    let mut room = names
        .new_object("csistoragecapacities", Target::Own)
        .expect("a node makes it");
    room["storageClassName"] = names.foreign_class()["metadata"]["name"].clone();
    let room = serde_json::from_value(room).expect("it is an object");
    let denied = || async {
        let made = rooms.create(&dry_post(), &room).await;
        made.is_err().then_some(())
    };
    until_in_force("classes of capacities", denied).await;
}

async fn until_in_force<F: Future<Output = Option<()>>>(what: &str, denied: impl Fn() -> F) {
    let in_force = until(PATIENCE, denied).await;
    in_force.unwrap_or_else(|| panic!("no policy for {what} is in force"));
}

/// The API of a resource in this namespace, or in all namespaces if that is empty.
fn api_of(client: &Client, resource: &str, namespace: &str) -> Api<DynamicObject> {
    let (resource, namespaced) = objects::resource(resource);
    let client = client.clone();
    if namespaced && !namespace.is_empty() {
        Api::namespaced_with(client, namespace, &resource)
    } else {
        Api::all_with(client, &resource)
    }
}

impl Names {
    /// The API of a resource in the namespace of this run's objects.
    pub(crate) fn api(&self, client: &Client, resource: &str) -> Api<DynamicObject> {
        let namespace = match resource {
            "csistoragecapacities" | "leases" => Installation::of_run().namespace,
            _ => &self.run,
        };
        api_of(client, resource, namespace)
    }
}

impl Site {
    /// The process's shared cluster, with clients for one test.
    pub(crate) async fn up() -> Site {
        static GROUND: OnceCell<Ground> = OnceCell::const_new();
        let ground = GROUND.get_or_init(Ground::lay).await;
        Site {
            admin: Objects::connect(&ground.cluster.kubeconfig()).await,
            node: objects::client(&ground.bound).await,
            unbound: objects::client(&ground.unbound).await,
            names: ground.names.clone(),
            cluster: &ground.cluster,
            ground,
        }
    }

    /// A kubeconfig of the node account on the stolen node.
    pub(crate) fn node_kubeconfig(&self) -> &Path {
        &self.ground.bound
    }

    /// The API of PersistentVolumes, with the node's client.
    pub(crate) fn volumes(&self) -> Api<DynamicObject> {
        api_of(&self.node, "persistentvolumes", "")
    }

    /// Creates a class of this driver.
    pub(crate) async fn class(&self, name: &str, driver: &str, binding: &str) {
        let binding = json!({"volumeBindingMode": binding});
        self.admin
            .create(objects::class(name, driver, binding))
            .await;
    }

    /// Creates a claim of 1 GiB in this class, changed like this.
    pub(crate) async fn claim(&self, name: &str, class: &str, change: Value) -> Place {
        let claim = objects::claim(&self.names.run, name, class, "1Gi", change);
        Place::of_object(&self.admin.create(claim).await)
    }

    /// Sends the attack as the node, as a dry run: it ends after admission.
    pub(crate) async fn try_attack(&self, attack: &Attack, target: Target) -> Result<(), String> {
        self.try_attack_with(&self.node, attack, target).await
    }

    /// [`Site::try_attack`] with another client.
    pub(crate) async fn try_attack_with(
        &self,
        client: &Client,
        attack: &Attack,
        target: Target,
    ) -> Result<(), String> {
        let (resource, part) = match attack.resource.split_once('/') {
            Some((resource, part)) => (resource, Some(part)),
            None => (attack.resource, None),
        };
        let api = self.names.api(client, resource);
        let name = self.names.of(target);
        let change = self.filled_in(&attack.change);
        let tried = match (attack.verb, part) {
            ("patch", None) => api.patch(&name, &dry_patch(), &Patch::Merge(change)).await,
            ("patch", Some(part)) => {
                let patch = Patch::Merge(change);
                api.patch_subresource(part, &name, &dry_patch(), &patch)
                    .await
            }
            ("create", None) => {
                let Some(object) = self.names.new_object(resource, target) else {
                    return Ok(());
                };
                let object = objects::with(object, change);
                // Not as an object: it may have times that can't be read.
                let request = Request::new(api.resource_url());
                let request = request.create(&dry_post(), object.to_string().into_bytes());
                client.request(request.expect("a request")).await
            }
            ("delete", None) => {
                let params = DeleteParams::default().dry_run();
                let deleted = api.delete(&name, &params).await;
                return deleted.map(drop).map_err(|error| message(&error));
            }
            (verb, part) => panic!("{verb} of {resource} {part:?} is not tried"),
        };
        tried.map(drop).map_err(|error| message(&error))
    }

    /// Changes the status of a claim as the node, as a dry run. Returns what it would be.
    pub(crate) async fn try_claim_status(
        &self,
        claim: &str,
        status: Value,
    ) -> Result<Value, String> {
        let api = self.names.api(&self.node, "persistentvolumeclaims");
        let patch = Patch::Merge(json!({"status": status}));
        let tried = api
            .patch_subresource("status", claim, &dry_patch(), &patch)
            .await;
        tried
            .map(|claim| claim.data["status"].clone())
            .map_err(|error| message(&error))
    }

    /// Replaces the placeholders for node names in a change, and the driver's name.
    fn filled_in(&self, change: &Value) -> Value {
        let text = named(&change.to_string());
        let text = text.replace("$OWN", &self.names.own);
        let text = text.replace("$OTHER", &self.names.other);
        let text = text.replace("$RUN", &self.names.run);
        serde_json::from_str(&text).expect("it is still JSON")
    }

    /// Reads as the node.
    pub(crate) async fn try_read(&self, verb: &str, read: &Read) -> Result<(), String> {
        read_as(&self.node, verb, read).await
    }
}

/// Reads with this client.
async fn read_as(client: &Client, verb: &str, read: &Read) -> Result<(), String> {
    let namespace = match (verb, read.namespace) {
        ("get", "") | (_, NAMESPACE) => Installation::of_run().namespace,
        (_, namespace) => namespace,
    };
    let api = api_of(client, read.resource, namespace);
    let done = match verb {
        // A missing object does not matter: authorization comes first.
        "get" => api.get_opt(&named(read.name)).await.map(drop),
        "list" => api.list(&ListParams::default().limit(1)).await.map(drop),
        "watch" => api
            .watch(&WatchParams::default().timeout(1), "0")
            .await
            .map(drop),
        verb => panic!("{verb} does not read"),
    };
    done.map_err(|error| message(&error))
}

pub(crate) fn dry_patch() -> PatchParams {
    PatchParams {
        dry_run: true,
        ..PatchParams::default()
    }
}

pub(crate) fn dry_post() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

/// The API server's reason for refusing; any other error fails the test.
pub(crate) fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if [403, 422].contains(&status.code) => status.message.clone(),
        error => panic!("the server could not be asked: {error}"),
    }
}

/// Starts a cluster with the manifest and two nodes.
fn installed(names: &Names) -> Cluster {
    // The API server drops the health of a claim without it.
    let cluster = Cluster::up(&cluster::Options {
        feature_gates: Some("CSIVolumeHealth=true"),
        ..cluster::Options::default()
    });
    cluster.create_crds();
    cluster.apply(&Installation::of_run().manifest());
    for (kind, name) in [
        ("Node", &names.own),
        ("Node", &names.other),
        ("Namespace", &names.run),
    ] {
        cluster.apply(&objects::named(kind, name).to_string());
    }
    cluster
}

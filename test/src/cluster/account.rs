//! Users of a cluster, which its audit log distinguishes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::config::{AuthInfo, Kubeconfig};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::Cluster;
use crate::PATIENCE;
use crate::front::fields::{list, text};

const RBAC: &str = "rbac.authorization.k8s.io";

impl Cluster {
    /// Creates a service account that may do anything. Returns its user name and its kubeconfig,
    /// which is written to this directory.
    pub fn account(&self, namespace: &str, name: &str, dir: &Path) -> (String, PathBuf) {
        self.account_with("cluster-admin", namespace, name, dir)
    }

    /// [`Cluster::account`] with the rights of another ClusterRole.
    pub fn account_with(
        &self,
        role: &str,
        namespace: &str,
        name: &str,
        dir: &Path,
    ) -> (String, PathBuf) {
        let account = format!("{namespace}:{name}");
        let user = format!("system:serviceaccount:{account}");
        self.kubectl(&["create", "serviceaccount", "-n", namespace, name]);
        let role = format!("--clusterrole={role}");
        let (binding, to) = (
            format!("{namespace}-{name}"),
            format!("--serviceaccount={account}"),
        );
        let before = self.rights_in_force(&user);
        self.kubectl(&["create", "clusterrolebinding", &binding, &role, &to]);
        // The API server knows a binding a little later than it has stored it.
        let started = Instant::now();
        while self.rights_in_force(&user) == before {
            assert!(started.elapsed() < PATIENCE, "{user} has no further rights");
            std::thread::sleep(Duration::from_millis(100));
        }
        (user, self.kubeconfig_of(namespace, name, dir))
    }

    /// The rights of a user as the API server applies them by now, in lines without an order.
    fn rights_in_force(&self, user: &str) -> BTreeSet<String> {
        let listed = self.kubectl(&["auth", "can-i", "--list", "--as", user]);
        listed.lines().map(str::to_owned).collect()
    }

    /// Creates a service account with the rights of these ClusterRoles in its own namespace alone.
    /// Returns its kubeconfig, which is written to this directory.
    pub fn tenant(&self, namespace: &str, name: &str, roles: &[&str], dir: &Path) -> PathBuf {
        self.kubectl(&["create", "serviceaccount", "-n", namespace, name]);
        let to = format!("--serviceaccount={namespace}:{name}");
        for role in roles {
            let of = format!("--clusterrole={role}");
            self.kubectl(&["create", "rolebinding", "-n", namespace, role, &of, &to]);
        }
        self.kubeconfig_of(namespace, name, dir)
    }

    /// Writes the kubeconfig of a service account to this directory.
    pub fn kubeconfig_of(&self, namespace: &str, name: &str, dir: &Path) -> PathBuf {
        let token = ["create", "token", "-n", namespace, name, "--duration=2h"];
        let token = self.kubectl(&token);
        let file = dir.join(format!("{name}.kubeconfig"));
        write_kubeconfig(&self.kubeconfig(), token.trim(), &file);
        file
    }

    /// Allows the node account of the driver in `home` to name these secrets of a namespace in
    /// volumes, but not to read them.
    pub fn may_use_secrets(&self, home: &str, namespace: &str, secrets: &[&str]) {
        let metadata = json!({"name": "use-secrets", "namespace": namespace});
        let role = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets,
                "verbs": ["use"]}]});
        let binding = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "use-secrets"},
            "subjects": [{"kind": "ServiceAccount", "name": "hostloop", "namespace": home}]});
        self.apply(
            &json!({"apiVersion": "v1", "kind": "List", "items": [role, binding]}).to_string(),
        );
    }

    /// The rights of a service account (`namespace:name`) by these bindings: the role, the verb and
    /// the resource of each. A subresource follows a slash.
    pub fn rights(&self, account: &str, by: impl Fn(&Value) -> bool) -> Vec<[String; 3]> {
        let bindings = self.json(&["get", "clusterrolebindings,rolebindings", "-A"]);
        let roles = self.json(&["get", "clusterroles,roles", "-A"]);
        let is_of_account = |binding: &&Value| {
            list(&binding["subjects"]).any(|subject| {
                let (namespace, name) = (text(&subject["namespace"]), text(&subject["name"]));
                subject["kind"] == "ServiceAccount" && format!("{namespace}:{name}") == account
            })
        };
        let mut rights = Vec::new();
        for binding in list(&bindings["items"])
            .filter(is_of_account)
            .filter(|b| by(b))
        {
            let of = &binding["roleRef"];
            let role = list(&roles["items"]).find(|role| {
                let here = role["metadata"]["namespace"] == binding["metadata"]["namespace"];
                role["kind"] == of["kind"]
                    && role["metadata"]["name"] == of["name"]
                    && (here || of["kind"] == "ClusterRole")
            });
            let role = role.unwrap_or_else(|| panic!("there is no role {of}"));
            for rule in list(&role["rules"]) {
                for (verb, resource) in
                    list(&rule["verbs"]).flat_map(|v| list(&rule["resources"]).map(move |r| (v, r)))
                {
                    rights.push([&of["name"], verb, resource].map(|word| text(word).to_owned()));
                }
            }
        }
        assert!(!rights.is_empty(), "{account} is bound to no role");
        rights
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let printed = self.kubectl(&[arguments, &["--output=json"]].concat());
        serde_json::from_str(&printed).expect("kubectl prints JSON")
    }
}

/// Creates a pod of the node account in this namespace, on this node. No kubelet starts it.
pub async fn node_pod(client: &Client, namespace: &str, name: &str, node: &str) {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "serviceAccountName": "hostloop", "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            // Otherwise its deletion would wait for a kubelet.
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "none", "image": "none"}],
        },
    });
    let pod: Pod = serde_json::from_value(pod).expect("it is a pod");
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let made = pods.create(&PostParams::default(), &pod).await;
    made.unwrap_or_else(|e| panic!("pod {name}: {e}"));
}

/// A token of an account in this namespace. A token that is bound to a pod names the pod's node.
pub async fn token(client: &Client, namespace: &str, account: &str, pod: Option<&str>) -> String {
    let pod = pod.map(|name| json!({"apiVersion": "v1", "kind": "Pod", "name": name}));
    let request = json!({
        "metadata": {},
        "spec": {"audiences": [], "boundObjectRef": pod, "expirationSeconds": 2 * 60 * 60},
    });
    let request: TokenRequest = serde_json::from_value(request).expect("it is a request");
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let made = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await;
    let made = made.unwrap_or_else(|e| panic!("a token of {account}: {e}"));
    made.status
        .and_then(|status| status.token)
        .expect("the API server issues one")
}

/// Writes the administrator's kubeconfig with this token instead of the administrator's
/// credentials.
pub fn write_kubeconfig(admin: &Path, token: &str, file: &Path) {
    let mut config = Kubeconfig::read_from(admin).expect("the administrator has a kubeconfig");
    let user = AuthInfo {
        token: Some(token.to_owned().into()),
        ..AuthInfo::default()
    };
    config.auth_infos[0].auth_info = Some(user);
    let config = serde_json::to_string(&config).expect("it is plain data");
    std::fs::write(file, config).expect("a kubeconfig can be written");
}

//! Users of a cluster, which its audit log distinguishes.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Cluster;

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
        let user = format!("{namespace}:{name}");
        self.kubectl(&["create", "serviceaccount", "-n", namespace, name]);
        let role = format!("--clusterrole={role}");
        let (binding, to) = (format!("{namespace}-{name}"), format!("--serviceaccount={user}"));
        self.kubectl(&["create", "clusterrolebinding", &binding, &role, &to]);
        let token = ["create", "token", "-n", namespace, name, "--duration=2h"];
        let token = self.kubectl(&token);
        let file = dir.join(format!("{name}.kubeconfig"));
        self.write_kubeconfig(&token, &file);
        (format!("system:serviceaccount:{user}"), file)
    }

    /// Writes a kubeconfig with this token and without the administrator's credentials.
    pub fn write_kubeconfig(&self, token: &str, file: &Path) {
        let mut config = self.json(&["config", "view", "--raw"]);
        config["users"][0]["user"] = json!({"token": token.trim()});
        std::fs::write(file, config.to_string()).expect("a kubeconfig can be written");
    }

    /// Allows the deployed node account to name these secrets in volumes, but not to read them.
    pub fn may_use_secrets(&self, namespace: &str, secrets: &[&str]) {
        let metadata = json!({"name": "use-secrets", "namespace": namespace});
        let role = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets,
                "verbs": ["use"]}]});
        let binding = json!({"apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "use-secrets"},
            "subjects": [{"kind": "ServiceAccount", "name": "hostloop", "namespace": "hostloop"}]});
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
        for binding in list(&bindings["items"]).filter(is_of_account).filter(|b| by(b)) {
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

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

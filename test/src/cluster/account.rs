//! Users of a cluster, which its audit log distinguishes.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Cluster;

impl Cluster {
    /// Creates a service account that may do anything. Returns its user name and its kubeconfig,
    /// which is written to this directory.
    pub fn account(&self, namespace: &str, name: &str, dir: &Path) -> (String, PathBuf) {
        let user = format!("{namespace}:{name}");
        self.kubectl(&["create", "serviceaccount", "-n", namespace, name]);
        let role = "--clusterrole=cluster-admin";
        let (binding, to) = (format!("{namespace}-{name}"), format!("--serviceaccount={user}"));
        self.kubectl(&["create", "clusterrolebinding", &binding, role, &to]);
        let token = ["create", "token", "-n", namespace, name, "--duration=2h"];
        let token = self.kubectl(&token);
        let config = self.kubectl(&["config", "view", "--raw", "--output=json"]);
        let mut config: Value = serde_json::from_str(&config).expect("kubectl prints JSON");
        config["users"][0]["user"] = json!({"token": token.trim()});
        let file = dir.join(format!("{name}.kubeconfig"));
        std::fs::write(&file, config.to_string()).expect("a kubeconfig can be written");
        (format!("system:serviceaccount:{user}"), file)
    }
}

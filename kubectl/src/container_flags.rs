//! Flags of the node's program, read from the arguments of a pod's container.

use std::collections::BTreeMap;

use hostloop_report::flags::{EVENT_FLAGS, POOL_FLAGS};
use k8s_openapi::api::core::v1::{Container, Pod};

/// Why the flags can't be passed to another command in the container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FlagError {
    /// The value of a variable is not in the pod's specification.
    #[error(
        "{flag} of the container contains {variable}, and the pod's specification has no value for it"
    )]
    UnknownValue {
        /// The argument.
        flag: String,
        /// The variable as `$(NAME)`.
        variable: String,
    },
}

/// The flags of a container that all commands about pools take, with the values of its variables.
/// Variables such as `HOSTLOOP_POOL` need no flag: a command in the container has them too.
pub(crate) fn pool_flags(pod: &Pod, container: &Container) -> Result<Vec<String>, FlagError> {
    flags(pod, container, &POOL_FLAGS)
}

/// The flags of a container that say where it serves its events, with the values of its variables.
pub(crate) fn event_flags(pod: &Pod, container: &Container) -> Result<Vec<String>, FlagError> {
    flags(pod, container, &EVENT_FLAGS)
}

/// The flags of a container with these names, with the values of its variables.
fn flags(pod: &Pod, container: &Container, names: &[&str]) -> Result<Vec<String>, FlagError> {
    let variables = variables(pod, container);
    let kept = select(words(container), names);
    kept.into_iter().map(|arg| whole(arg, &variables)).collect()
}

/// All arguments of a container, with the values of its variables. A reference without a value
/// stays as it is.
pub(crate) fn arguments(pod: &Pod, container: &Container) -> Vec<String> {
    let variables = variables(pod, container);
    words(container)
        .map(|arg| expand(arg, &variables).0)
        .collect()
}

/// The arguments of a container as they are in its specification.
fn words(container: &Container) -> impl Iterator<Item = &String> {
    container
        .command
        .iter()
        .flatten()
        .skip(1)
        .chain(container.args.iter().flatten())
}

/// The arguments that are flags of these names, and their values. Each of these flags takes a
/// value. Of other flags, an argument that does not begin with `--` is the value.
fn select<'a>(mut args: impl Iterator<Item = &'a String>, names: &[&str]) -> Vec<&'a String> {
    let mut kept = Vec::new();
    while let Some(arg) = args.next() {
        let Some(flag) = arg.strip_prefix("--") else {
            continue;
        };
        let name = flag.split('=').next().unwrap_or_default();
        if !names.contains(&name) {
            continue;
        }
        kept.push(arg);
        if name == flag {
            kept.extend(args.next());
        }
    }
    kept
}

/// The values of a container's variables. As in Kubernetes, a value may refer to variables before
/// it.
fn variables(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut known = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            None => Some(expand(variable.value.as_deref().unwrap_or_default(), &known).0),
            Some(source) => source
                .field_ref
                .as_ref()
                .and_then(|field| field_of(pod, &field.field_path)),
        };
        match value {
            Some(value) => known.insert(variable.name.clone(), value),
            None => known.remove(&variable.name),
        };
    }
    known
}

/// The value of a pod's field, for the paths that the downward API allows and a driver may use.
fn field_of(pod: &Pod, path: &str) -> Option<String> {
    match path {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => pod.spec.as_ref()?.node_name.clone(),
        "spec.serviceAccountName" => pod.spec.as_ref()?.service_account_name.clone(),
        "status.hostIP" => pod.status.as_ref()?.host_ip.clone(),
        "status.podIP" => pod.status.as_ref()?.pod_ip.clone(),
        _ => None,
    }
}

/// The argument with the values of its variables.
fn whole(arg: &str, variables: &BTreeMap<String, String>) -> Result<String, FlagError> {
    match expand(arg, variables) {
        (text, None) => Ok(text),
        (_, Some(name)) => Err(FlagError::UnknownValue {
            flag: arg.to_owned(),
            variable: format!("$({name})"),
        }),
    }
}

/// Replaces each `$(NAME)` by its value, and `$$` by `$`. Kubelet does the same with arguments:
/// a reference without a value stays as it is. The second value is the first such name.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> (String, Option<String>) {
    let mut out = String::new();
    let mut unknown = None;
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let name = rest
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'));
        let Some((name, after)) = name else {
            out.push('$');
            continue;
        };
        match variables.get(name) {
            Some(value) => out.push_str(value),
            None => {
                out.push_str(&format!("$({name})"));
                unknown.get_or_insert_with(|| name.to_owned());
            }
        }
        rest = after;
    }
    out.push_str(rest);
    (out, unknown)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn flags(container: Value) -> Result<Vec<String>, String> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "hostloop-x", "namespace": "hostloop", "uid": "u"},
            "spec": {"nodeName": "n1", "containers": [container]},
        }))
        .unwrap();
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        pool_flags(&pod, &container).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_about_pools_alone() {
        let env = json!([
            {"name": "KUBELET_DIR", "value": "/var/lib/kubelet"},
            {"name": "POOL_DIR", "value": "/pools"},
            {"name": "POOL_OPTIONS"},
            {"name": "BOTH", "value": "$(POOL_DIR)/sub"},
            {"name": "LATER", "value": "$(AFTER)"},
            {"name": "AFTER", "value": "a"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ]);
        for (args, kept) in [
            (json!(["run"]), Ok(vec![])),
            (json!(["run", "--pool=a=/p"]), Ok(vec!["--pool=a=/p"])),
            (
                json!(["run", "--pool", "a=/p", "--json"]),
                Ok(vec!["--pool", "a=/p"]),
            ),
            (
                json!(["run", "--enable-attach", "--reserve=1%"]),
                Ok(vec!["--reserve=1%"]),
            ),
            (
                json!(["run", "--nodeid", "n", "--pool=a=/p"]),
                Ok(vec!["--pool=a=/p"]),
            ),
            (
                json!(["--pools=a=/p", "--endpoint=unix://$(KUBELET_DIR)/s"]),
                Ok(vec![]),
            ),
            (
                json!([
                    "--pool=default=$(POOL_DIR)$(POOL_OPTIONS)",
                    "--statedir=$(KUBELET_DIR)/x"
                ]),
                Ok(vec![
                    "--pool=default=/pools",
                    "--statedir=/var/lib/kubelet/x",
                ]),
            ),
            (
                json!(["--pool=a=$(BOTH)/$(NODE)"]),
                Ok(vec!["--pool=a=/pools/sub/n1"]),
            ),
            (
                json!(["--pool=a=/$$(NODE)/$x/$"]),
                Ok(vec!["--pool=a=/$(NODE)/$x/$"]),
            ),
            (
                json!(["--pool=a=/$(LATER)"]),
                Ok(vec!["--pool=a=/$(AFTER)"]),
            ),
            (json!(["--pool=a=/$(NODE"]), Ok(vec!["--pool=a=/$(NODE"])),
            (
                json!(["--pool=a=/$(SECRET)"]),
                Err(
                    "--pool=a=/$(SECRET) of the container contains $(SECRET), and the pod's \
                     specification has no value for it",
                ),
            ),
            (
                json!(["--endpoint=$(SECRET)", "--pool=a=/p"]),
                Ok(vec!["--pool=a=/p"]),
            ),
        ] {
            let container = json!({"name": "c", "args": args, "env": env});
            let kept: Result<Vec<String>, String> = match kept {
                Ok(kept) => Ok(kept.into_iter().map(str::to_owned).collect()),
                Err(error) => Err(error.to_owned()),
            };
            assert_eq!(flags(container), kept, "{args}");
        }
    }

    #[test]
    fn a_command_may_have_the_flags() {
        let container = json!({"name": "c", "command": ["/hostloop", "run", "--pool=a=/p"]});
        assert_eq!(flags(container), Ok(vec!["--pool=a=/p".to_owned()]));
    }
}

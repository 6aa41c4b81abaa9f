//! The pod of this process. The environment names it, and is read once, at the start.

/// The directory of the pod's service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The pod of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnPod {
    /// The pod's name, which leads to the owner of capacity objects; `None` outside of a pod.
    pub name: Option<String>,
    /// The namespace of leases, unless a flag names one.
    pub namespace: String,
    /// The namespace of capacity objects and of the placement table, if it is known.
    pub capacity_namespace: Option<String>,
    /// The identity of this process in leases, different for every process. A container that
    /// restarts in its pod keeps it, so it can continue at once with leases it held.
    pub identity: String,
}

impl OwnPod {
    /// Reads the environment: `POD_NAME`, `POD_NAMESPACE` and `NAMESPACE`. Without them, the
    /// service account names the namespace, and host and process ID make the identity.
    pub fn from_environment() -> Self {
        let of_account = std::fs::read_to_string(format!("{ACCOUNT}/namespace")).ok();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let process = format!("{}_{}", host.trim(), std::process::id());
        OwnPod::read(|name| std::env::var(name).ok(), of_account, process)
    }

    fn read(
        variable: impl Fn(&str) -> Option<String>,
        of_account: Option<String>,
        process: String,
    ) -> Self {
        let name = named(variable("POD_NAME"));
        let namespace = named(variable("POD_NAMESPACE"));
        let capacity_namespace = named(variable("NAMESPACE")).or_else(|| namespace.clone());
        let namespace = namespace.or_else(|| named(of_account));
        OwnPod {
            identity: name.clone().unwrap_or(process),
            name,
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            capacity_namespace,
        }
    }
}

/// The name in a text, if there is one.
fn named(text: Option<String>) -> Option<String> {
    text.map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_come_before_what_the_machine_says() {
        let read = |variables: &[(&str, &str)], of_account: Option<&str>| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let pod = OwnPod::read(variable, of_account.map(str::to_owned), "host_7".to_owned());
            (
                pod.identity,
                pod.name,
                pod.namespace,
                pod.capacity_namespace,
            )
        };
        let expect =
            |identity: &str, name: Option<&str>, namespace: &str, capacity: Option<&str>| {
                let (name, capacity) = (name.map(str::to_owned), capacity.map(str::to_owned));
                (identity.to_owned(), name, namespace.to_owned(), capacity)
            };
        let (name, namespace, capacity) = (
            ("POD_NAME", "p"),
            ("POD_NAMESPACE", "n"),
            ("NAMESPACE", "c"),
        );
        let empty = [("POD_NAME", ""), ("POD_NAMESPACE", ""), ("NAMESPACE", "")];
        assert_eq!(read(&[], None), expect("host_7", None, "default", None));
        assert_eq!(read(&empty, Some("a\n")), expect("host_7", None, "a", None));
        assert_eq!(
            read(&[name, namespace], Some("a")),
            expect("p", Some("p"), "n", Some("n"))
        );
        assert_eq!(
            read(&[capacity], Some("a")),
            expect("host_7", None, "a", Some("c"))
        );
        assert_eq!(
            read(&[namespace, capacity], None),
            expect("host_7", None, "n", Some("c"))
        );
    }
}

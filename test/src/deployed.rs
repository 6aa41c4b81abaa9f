//! What is deployed beside the program, for drivers of other names.

use std::path::Path;

/// The ConfigMap by which the API server places claims, as it is deployed.
pub const TABLE: &str = "hostloop-places";

/// The policy by which the API server places and labels claims, and its table, which is empty: for
/// this driver, by this name, in this namespace.
pub fn place_claims(driver: &str, name: &str, namespace: &str) -> String {
    let policy = read("components/place-claims/policy.yaml");
    let policy = replaced(
        &policy,
        &[
            ("'hostloop.csi.dev'", &format!("'{driver}'")),
            ("hostloop-claims", &format!("{name}-claims")),
            (
                "namespace: hostloop\n",
                &format!("namespace: {namespace}\n"),
            ),
        ],
    );
    let table = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {TABLE}\n  namespace: {namespace}\n"
    );
    format!("{table}---\n{policy}")
}

/// The priorities of an account, as `namespace:name`, by this name and with its leases in this
/// namespace.
pub fn flow_control(account: &str, name: &str, namespace: &str) -> String {
    let (of, account) = account.split_once(':').expect("a namespace and a name");
    let named = |name: &str| format!("  name: {name}\n  labels:");
    let leveled = |name: &str| format!("  priorityLevelConfiguration:\n    name: {name}\n");
    let subject = |name: &str, of: &str| format!("name: {name}\n            namespace: {of}\n");
    let leases = format!("{name}-leases");
    replaced(
        &read("base/flowcontrol.yaml"),
        &[
            (&named("hostloop"), &named(name)),
            (&named("hostloop-leases"), &named(&leases)),
            (&leveled("hostloop"), &leveled(name)),
            (&subject("hostloop", "hostloop"), &subject(account, of)),
            (
                "namespaces: [hostloop]",
                &format!("namespaces: [{namespace}]"),
            ),
        ],
    )
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy")
        .join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A text with each of these replaced, of which none may be missing.
fn replaced(text: &str, changes: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (deployed, ours) in changes {
        assert!(text.contains(deployed), "{deployed:?} is deployed");
        text = text.replace(deployed, ours);
    }
    text
}

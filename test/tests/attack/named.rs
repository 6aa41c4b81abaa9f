//! The driver's name in this run: the usual one, or that in `ATTACK_DRIVER_NAME`. The manifest is
//! then rendered for it, and the whole table holds under it.

use std::env;
use std::sync::LazyLock;

use hostloop_test::deployed::DRIVER;

/// The driver's name in this run.
pub(crate) fn driver() -> &'static str {
    static NAME: LazyLock<String> =
        LazyLock::new(|| env::var("ATTACK_DRIVER_NAME").unwrap_or_else(|_| DRIVER.to_owned()));
    &NAME
}

/// A text of the table, with the driver's name in this run.
pub(crate) fn named(text: &str) -> String {
    renamed(text, driver())
}

/// Gives the driver another name in a text. Keys of labels and of the topology have the usual one
/// before a slash, and keep it. The lease and the attacher's finalizer have the name with dashes.
fn renamed(text: &str, name: &str) -> String {
    let mut parts = text.split(DRIVER);
    let mut renamed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        renamed.push_str(if part.starts_with('/') { DRIVER } else { name });
        renamed.push_str(part);
    }
    renamed.replace(&DRIVER.replace('.', "-"), &name.replace('.', "-"))
}

#[test]
fn what_has_the_drivers_name() {
    for (text, expected) in [
        ("not of driver hostloop.csi.dev", "not of driver d.e"),
        (
            "hostloop.csi.dev/node of hostloop.csi.dev",
            "hostloop.csi.dev/node of d.e",
        ),
        (
            "topology.hostloop.csi.dev/node",
            "topology.hostloop.csi.dev/node",
        ),
        (
            "external-attacher/hostloop-csi-dev",
            "external-attacher/d-e",
        ),
        ("hostloop-hostloop-csi-dev", "hostloop-d-e"),
        ("other.csi.dev", "other.csi.dev"),
    ] {
        assert_eq!(renamed(text, "d.e"), expected);
        assert_eq!(renamed(text, DRIVER), text);
    }
}

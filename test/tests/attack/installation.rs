//! The names under which hostloop is installed in this run: the usual ones, another driver name
//! (`ATTACK_DRIVER_NAME`), or those of an overlay (`ATTACK_OVERLAY`). Or its nodes share a kernel
//! (`ATTACK_SHARED_KERNEL`). The whole table holds under each of them.

use std::env;
use std::sync::LazyLock;

use hostloop_test::deployed::{self, DRIVER, NAMESPACE};
use hostloop_test::machine::root;

/// The usual topology key. The attack table has it.
const TOPOLOGY_KEY: &str = "topology.hostloop.csi.dev/node";

/// The component with the policies for nodes that share a kernel.
const SHARED_KERNEL: &str = "shared-kernel/policies";

/// The overlay that has names of its own.
const DROP_IN: &str = "csi-hostpath";

/// What is installed, and its names.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    /// The driver.
    pub(crate) driver: String,
    /// Of both accounts, the lease, and the capacities.
    pub(crate) namespace: &'static str,
    pub(crate) topology_key: &'static str,
    /// The stolen node shares its kernel with the other one.
    pub(crate) shares_kernel: bool,
    /// The arguments of `scripts/render`. Without them, the manifest is the one in the checkout.
    rendered: Vec<String>,
}

impl Installation {
    /// The installation of this run.
    pub(crate) fn of_run() -> &'static Installation {
        static OF_RUN: LazyLock<Installation> = LazyLock::new(|| {
            let variable = |name: &str| env::var(name).ok();
            let named =
                Installation::of(variable("ATTACK_OVERLAY"), variable("ATTACK_DRIVER_NAME"));
            match variable("ATTACK_SHARED_KERNEL") {
                Some(_) => named.with_shared_kernel(),
                None => named,
            }
        });
        &OF_RUN
    }

    fn of(overlay: Option<String>, driver: Option<String>) -> Installation {
        let usual = Installation {
            driver: DRIVER.to_owned(),
            namespace: NAMESPACE,
            topology_key: TOPOLOGY_KEY,
            shares_kernel: false,
            rendered: Vec::new(),
        };
        match (overlay, driver) {
            (Some(_), Some(_)) => panic!("ATTACK_OVERLAY and ATTACK_DRIVER_NAME: leave one out"),
            (Some(overlay), None) if overlay == DROP_IN => Installation {
                driver: "hostpath.csi.k8s.io".to_owned(),
                namespace: "default",
                topology_key: "topology.hostpath.csi/node",
                rendered: vec!["--overlay".to_owned(), overlay],
                ..usual
            },
            (Some(overlay), None) => Installation {
                rendered: vec!["--overlay".to_owned(), overlay],
                ..usual
            },
            (None, Some(driver)) => Installation {
                rendered: vec!["--driver-name".to_owned(), driver.clone()],
                driver,
                ..usual
            },
            (None, None) => usual,
        }
    }

    /// This installation, on nodes that share a kernel.
    fn with_shared_kernel(mut self) -> Installation {
        self.shares_kernel = true;
        self.rendered
            .extend(["--component", SHARED_KERNEL].map(str::to_owned));
        self
    }

    /// The manifest.
    pub(crate) fn manifest(&self) -> String {
        if self.rendered.is_empty() {
            let file = root().join("deploy/hostloop.yaml");
            return std::fs::read_to_string(file).expect("it is in the checkout");
        }
        let arguments: Vec<&str> = self.rendered.iter().map(String::as_str).collect();
        deployed::render(&arguments)
    }

    /// The node account, as bindings name it.
    pub(crate) fn account(&self) -> String {
        format!("{}:hostloop", self.namespace)
    }

    /// A text of the table, with the names of this installation. Keys of labels have the driver's
    /// usual name before a slash, and keep it. The lease and the attacher's finalizer have the name
    /// with dashes.
    fn renamed(&self, text: &str) -> String {
        let mut parts = text.split(DRIVER);
        let mut renamed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let is_key = part.starts_with('/');
            renamed.push_str(if is_key { DRIVER } else { &self.driver });
            renamed.push_str(part);
        }
        let dashed = |name: &str| name.replace('.', "-");
        renamed
            .replace(&dashed(DRIVER), &dashed(&self.driver))
            .replace(TOPOLOGY_KEY, self.topology_key)
    }
}

/// The driver's name in this run.
pub(crate) fn driver() -> &'static str {
    &Installation::of_run().driver
}

/// A text of the table, with the names of this run.
pub(crate) fn named(text: &str) -> String {
    Installation::of_run().renamed(text)
}

#[test]
fn what_has_the_drivers_name() {
    let (usual, other) = (
        Installation::of(None, None),
        Installation::of(None, Some("d.e".to_owned())),
    );
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
        assert_eq!(other.renamed(text), expected);
        assert_eq!(usual.renamed(text), text);
    }
}

/// The names here are those that the overlay renders.
#[test]
fn the_overlay_has_these_names() {
    let drop_in = Installation::of(Some(DROP_IN.to_owned()), None);
    assert_eq!(
        drop_in.renamed("topology.hostloop.csi.dev/node of hostloop.csi.dev"),
        "topology.hostpath.csi/node of hostpath.csi.k8s.io"
    );
    let manifest = drop_in.manifest();
    for name in [&*drop_in.driver, drop_in.topology_key] {
        assert!(manifest.contains(&format!("'{name}'")), "{name}");
    }
    let account = format!("'system:serviceaccount:{}'", drop_in.account());
    assert!(manifest.contains(&account), "{account}");
    assert!(!manifest.contains("serviceaccount:hostloop:"));
}

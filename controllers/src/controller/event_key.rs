//! How events name the keys of queues, and the controllers by their queues.

/// A key of a queue, as events name it: the UID, or the name with its namespace.
pub trait EventKey {
    fn text(&self) -> String;
}

impl EventKey for String {
    fn text(&self) -> String {
        self.clone()
    }
}

/// A namespace and a name.
impl EventKey for (String, String) {
    fn text(&self) -> String {
        format!("{}/{}", self.0, self.1)
    }
}

/// The controller that works on a queue. Most names of queues are upstream's.
pub(super) fn controller_of(queue: &'static str) -> &'static str {
    match queue {
        "claims" | "volumes" | "unsaved" | "clone" | "restored" => "provisioner",
        _ if queue.starts_with("claims-of-") => "provisioner",
        "modifier" => "resizer",
        _ if queue.starts_with("csi-attacher-") => "attacher",
        _ if queue.starts_with("placement-") => "placement",
        _ if queue.starts_with("snapshotter-") => "snapshotter",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_by_their_queues() {
        for (queue, controller) in [
            ("claims", "provisioner"),
            ("restored", "provisioner"),
            ("claims-of-classes", "provisioner"),
            ("csi-attacher-va", "attacher"),
            ("modifier", "resizer"),
            ("resizer", "resizer"),
            ("placement-claims", "placement"),
            ("snapshotter-stray-content", "snapshotter"),
            ("snapshot-controller", "snapshot-controller"),
            ("capacity", "capacity"),
        ] {
            assert_eq!(controller_of(queue), controller);
        }
    }
}

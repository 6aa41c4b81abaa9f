//! The names of nodes, and of what runs on them.

use crate::history::History;

/// The actors of the nodes at the API server.
const ACTORS: [Names; 3] = [
    Names {
        node: "n1",
        driver: "node",
        kubelet: "kubelet",
        pod: "hostloop-x1",
    },
    Names {
        node: "n2",
        driver: "node-2",
        kubelet: "kubelet-2",
        pod: "hostloop-x2",
    },
    Names {
        node: "n3",
        driver: "node-3",
        kubelet: "kubelet-3",
        pod: "hostloop-x3",
    },
];

/// The same, where nodes have names that are too long for the labels of capacity objects: one is cut
/// there, and one is left out. A world with one node has a short name.
const LONG: [Names; 3] = [
    ACTORS[0],
    Names {
        node: "n2-in-the-second-hall-of-the-data-centre-in-delft",
        driver: "node-2-long",
        kubelet: "kubelet-2-long",
        pod: "hostloop-x2",
    },
    Names {
        node: "n3-on-the-top-floor-of-the-office-building-beside-the-harbour",
        driver: "node-3-long",
        kubelet: "kubelet-3-long",
        pod: "hostloop-x3",
    },
];

/// The names of a node and of what runs on it.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub(super) node: &'static str,
    pub(super) driver: &'static str,
    pub(super) kubelet: &'static str,
    pub(super) pod: &'static str,
}

/// The node with the driver that has this name at the API server.
pub(crate) fn node_of(actor: &str) -> Option<&'static str> {
    let mut names = ACTORS.iter().chain(&LONG);
    let names = names.find(|names| names.driver == actor);
    names.map(|names| names.node)
}

/// The name of the node with this number in the cluster of a history.
pub(crate) fn node_name(number: usize, history: &History) -> &'static str {
    names_of(number, history).node
}

/// The names of this node and of what runs on it.
pub(super) fn names_of(number: usize, history: &History) -> Names {
    let all = if history.long_names { LONG } else { ACTORS };
    all[number]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::World;

    #[test]
    fn drivers_have_nodes() {
        for (actor, expected) in [
            ("node", Some("n1")),
            ("node-3", Some("n3")),
            ("node-2-long", Some(LONG[1].node)),
            ("kubelet", None),
        ] {
            assert_eq!(node_of(actor), expected, "{actor}");
        }
    }

    #[test]
    fn labels_cut_one_long_name_and_leave_one_out() {
        let lengths = LONG.map(|names| names.node.len());
        assert!((43..=52).contains(&lengths[1]), "{lengths:?}");
        assert!((53..=63).contains(&lengths[2]), "{lengths:?}");
        let mut history = History::of(1, World::Calm, 0);
        assert_eq!(node_name(2, &history), "n3");
        history.long_names = true;
        assert_eq!(node_name(2, &history), LONG[2].node);
        assert_eq!(node_name(0, &history), "n1");
    }
}

//! What an administrator may choose for a cluster. It is off by default.

use serde::{Deserialize, Serialize};

use crate::dice::Dice;

/// Something that is off by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ClusterOption {
    /// The leader reports nodes that are down by events on the claims that pods use there.
    NodeWatcher,
    /// The API server stores the health of volumes in the status of claims, as that of Kubernetes 1.37
    /// with the feature gate CSIVolumeHealth.
    VolumeHealth,
    /// The drivers accept some mutable parameters alone: `--accepted-mutable-parameter-names`.
    AcceptedParameters,
    /// Files of the pools can share blocks, as on XFS and btrfs.
    Reflinks,
    /// Nodes look seldom for room that others took or freed, and at their storage:
    /// `--capacity-poll-interval` and `--monitor-interval`. Otherwise these looks are most of the calls
    /// of a cluster at rest.
    RarePolls,
}

impl ClusterOption {
    pub(crate) const ALL: [ClusterOption; 5] = [
        ClusterOption::NodeWatcher,
        ClusterOption::VolumeHealth,
        ClusterOption::AcceptedParameters,
        ClusterOption::Reflinks,
        ClusterOption::RarePolls,
    ];

    /// The options of a seed.
    pub(super) fn of(seed: u64) -> Vec<ClusterOption> {
        let all = (0..).zip(ClusterOption::ALL);
        all.filter(|(number, option)| Dice::of(seed, "options", *number).percent(option.share()))
            .map(|(_, option)| option)
            .collect()
    }

    /// So many of a hundred clusters have it.
    fn share(self) -> u64 {
        match self {
            ClusterOption::NodeWatcher | ClusterOption::VolumeHealth => 50,
            ClusterOption::AcceptedParameters => 33,
            ClusterOption::Reflinks => 40,
            ClusterOption::RarePolls => 75,
        }
    }

    /// What it means, as a sentence.
    pub(super) fn about(self) -> &'static str {
        match self {
            ClusterOption::NodeWatcher => "events on claims report nodes that are down",
            ClusterOption::VolumeHealth => "the status of claims has the health of volumes",
            ClusterOption::AcceptedParameters => "drivers accept some mutable parameters alone",
            ClusterOption::Reflinks => "files of the pools can share blocks",
            ClusterOption::RarePolls => {
                "nodes look seldom for room that others took or freed, and at their storage"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_is_on_in_some_clusters() {
        for option in ClusterOption::ALL {
            let seeds = 0..200;
            let on = seeds.filter(|seed| ClusterOption::of(*seed).contains(&option));
            let on = on.count() as u64;
            let expected = 2 * option.share();
            assert!(
                on.abs_diff(expected) < 30,
                "{option:?}: {on}, not {expected}"
            );
        }
    }
}

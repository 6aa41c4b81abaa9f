//! Decides the topology of this node from its flags, and refuses flags that contradict each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::{ServeArgs, VolumeArgs};
use crate::csi::topology::{Segments, Topology};

/// Flags of the topology that contradict each other.
#[derive(Debug, thiserror::Error)]
pub enum TopologyFlagsError {
    /// A flag sets the node's topology, but the topology is off.
    #[error("{flag} says where the node is, but the topology is off (--enable-topology=false)")]
    NoTopology { flag: &'static str },
    /// A flag names the key that holds the node's ID.
    #[error(
        "{flag}: {key} is the node's own key (--topology-key) and has the node's ID as its value: \
         leave it out"
    )]
    OwnKey { flag: &'static str, key: String },
    /// A key has two values; CSI keys are case-insensitive.
    #[error("{flag}: the key {key} is given twice{also}")]
    KeyTwice {
        flag: &'static str,
        key: String,
        /// The other place that sets the key.
        also: &'static str,
    },
}

const TOPOLOGY: &str = "--topology";
const FROM_LABELS: &str = "--topology-from-node-labels";

/// The topology of this node, without labels that are not known yet.
pub(super) fn topology(
    args: &ServeArgs,
    labels: &[String],
    id: &str,
) -> Result<Topology, TopologyFlagsError> {
    let VolumeArgs {
        topology: given,
        topology_key: own,
        ..
    } = &args.volumes;
    if !args.switches.enable_topology {
        let flags = [
            (TOPOLOGY, given.is_empty()),
            (FROM_LABELS, labels.is_empty()),
        ];
        return match flags.into_iter().find(|(_, absent)| !absent) {
            Some((flag, _)) => Err(TopologyFlagsError::NoTopology { flag }),
            None => Ok(Topology::default()),
        };
    }
    let given_keys = given.iter().map(|segment| (TOPOLOGY, &segment.key));
    let keys = given_keys.chain(labels.iter().map(|key| (FROM_LABELS, key)));
    check_keys(own, keys)?;
    let given = given.iter().map(|one| (one.key.clone(), one.value.clone()));
    let mut segments: Segments = given.collect();
    segments.insert(own.clone(), id.to_owned());
    if labels.is_empty() {
        return Ok(segments.into());
    }
    let labels: BTreeSet<_> = labels.iter().cloned().collect();
    let state_dir = args.pools.state_dir();
    Ok(Topology::with_labels(segments, labels, id, &state_dir))
}

/// Refuses keys that are set already; CSI keys are case-insensitive.
fn check_keys<'a>(
    own: &str,
    keys: impl Iterator<Item = (&'static str, &'a String)>,
) -> Result<(), TopologyFlagsError> {
    let mut seen = BTreeMap::new();
    for (flag, key) in keys {
        if key.eq_ignore_ascii_case(own) {
            let key = key.clone();
            return Err(TopologyFlagsError::OwnKey { flag, key });
        }
        if let Some(before) = seen.insert(key.to_ascii_lowercase(), flag) {
            return Err(TopologyFlagsError::KeyTwice {
                flag,
                key: key.clone(),
                also: if before == flag {
                    ""
                } else {
                    ", by --topology too"
                },
            });
        }
    }
    Ok(())
}

//! Decides whether a new volume may be used on all nodes of a kernel. Pure.

use hostloop_controllers::api::constants::REACH;

use crate::controller::{Error, Result};
use crate::csi::validate::invalid;
use crate::kernel::FsType;

/// What a node and a class say about such a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReachFacts {
    /// Volumes are attached (`--enable-attach`).
    pub(super) attaches: bool,
    /// The driver serves shared volumes, and nodes may share a kernel (`--kernels`).
    pub(super) is_on: bool,
    /// The administrator lists this node with a kernel.
    pub(super) is_listed: bool,
    /// The volume's filesystem; `None` for a raw block volume.
    pub(super) fs: Option<FsType>,
    /// The class has `faultDisk`.
    pub(super) has_fault_disk: bool,
    /// The class has a fault.
    pub(super) has_fault: bool,
    /// The number of this node's topology keys.
    pub(super) keys: usize,
}

impl ReachFacts {
    /// Fails if the volume can't be used on all nodes of the kernel.
    pub(super) fn check(&self) -> Result<()> {
        if !self.attaches {
            return Err(refused(
                "volumes are not attached here, so no one would keep a second node from writing: \
                 install with --attach",
            ));
        }
        if !self.is_on {
            return Err(refused(
                "no node shares its kernel here: install with --shared",
            ));
        }
        if !self.is_listed {
            return Err(Error::FailedPrecondition(
                "this node is in no kernel of ConfigMap hostloop-kernels: add it there (kubectl \
                 hostloop install --shared)"
                    .to_owned(),
            ));
        }
        if self.fs == Some(FsType::Btrfs) {
            return Err(refused(
                "a btrfs is not shared yet: choose ext4, XFS or a raw block volume",
            ));
        }
        if self.has_fault_disk {
            return Err(refused("a fault disk is of one node: leave out faultDisk"));
        }
        if self.has_fault {
            return Err(refused("a fault is of one node: leave out fault"));
        }
        if self.keys != 1 {
            return Err(refused(
                "the topology has to be the node's own key alone, which differs on all nodes: run the \
                 driver with --enable-topology, and without --topology and --topology-from-node-labels",
            ));
        }
        Ok(())
    }
}

/// Fails if the kernel does not number the attachments of loop devices: a node could not tell a
/// device from the next one at its number.
pub(super) fn require_numbers(is_numbered: bool) -> Result<()> {
    if is_numbered {
        return Ok(());
    }
    Err(Error::FailedPrecondition(
        "volumes with reach=kernel need Linux 5.15 or newer on this node".to_owned(),
    ))
}

fn refused(why: &str) -> Error {
    invalid(
        format!("parameters[{REACH:?}]"),
        format!("kernel is not possible: {why}"),
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: ReachFacts = ReachFacts {
        attaches: true,
        is_on: true,
        is_listed: true,
        fs: Some(FsType::Ext4),
        has_fault_disk: false,
        has_fault: false,
        keys: 1,
    };

    /// A part of a refusal, which is of the parameter or of the state of the node.
    enum Refused {
        Parameter(&'static str),
        Node(&'static str),
    }

    #[test]
    fn what_can_be_shared() {
        for fs in [Some(FsType::Ext4), Some(FsType::Xfs), None] {
            assert!(ReachFacts { fs, ..GOOD }.check().is_ok(), "{fs:?}");
        }
    }

    #[test]
    fn what_can_not_be_shared_is_refused_by_name() {
        use Refused::{Node, Parameter};
        type Change = fn(&mut ReachFacts);
        let table: [(Change, Refused); 8] = [
            (|facts| facts.attaches = false, Parameter("--attach")),
            (|facts| facts.is_on = false, Parameter("--shared")),
            (|facts| facts.is_listed = false, Node("hostloop-kernels")),
            (|facts| facts.fs = Some(FsType::Btrfs), Parameter("btrfs")),
            (|facts| facts.has_fault_disk = true, Parameter("faultDisk")),
            (|facts| facts.has_fault = true, Parameter("leave out fault")),
            (|facts| facts.keys = 2, Parameter("--topology")),
            (|facts| facts.keys = 0, Parameter("--enable-topology")),
        ];
        for (change, expected) in table {
            let mut facts = GOOD;
            change(&mut facts);
            match (facts.check(), expected) {
                (Err(Error::Invalid(refused)), Parameter(part)) => {
                    assert_eq!(refused.field, "parameters[\"reach\"]");
                    assert!(refused.why.contains(part), "{refused}");
                }
                (Err(Error::FailedPrecondition(why)), Node(part)) => {
                    assert!(why.contains(part), "{why}");
                }
                (answer, _) => panic!("{facts:?}: {answer:?}"),
            }
        }
    }

    #[test]
    fn a_kernel_without_numbers_is_refused() {
        assert!(require_numbers(true).is_ok());
        let refused = require_numbers(false).unwrap_err();
        assert!(refused.to_string().contains("5.15"), "{refused}");
    }
}

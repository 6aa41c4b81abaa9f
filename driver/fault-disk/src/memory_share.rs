//! Who may have how much of the memory of a node's fault disks.
//!
//! Any user with a claim of a class with fault disks takes some of it, and no quota of Kubernetes
//! counts it. So one namespace gets half of it at most, or one disk of any size.

use crate::{Error, Result};

/// Admits a disk that needs this many bytes, beside others with their namespaces and bytes. Nothing
/// names the namespace of a volume that was made by hand: it counts for the node alone.
pub(crate) fn admit<'a>(
    memory: u64,
    others: impl IntoIterator<Item = (&'a str, u64)>,
    namespace: &str,
    needed: u64,
) -> Result<()> {
    let (mut used, mut its) = (0_u64, 0_u64);
    for (other, bytes) in others {
        used = used.saturating_add(bytes);
        if other == namespace {
            its = its.saturating_add(bytes);
        }
    }
    let left = memory.saturating_sub(used);
    if needed > left {
        return Err(Error::NoMemory { needed, left });
    }
    let left = (memory / 2).saturating_sub(its);
    if namespace.is_empty() || its == 0 || needed <= left {
        return Ok(());
    }
    let namespace = namespace.to_owned();
    Err(Error::NoShare {
        namespace,
        needed,
        left,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_half_at_most_or_one_disk() {
        let disks = |of: &[(&'static str, u64)]| of.to_vec();
        let table = [
            (disks(&[]), "a", 100, "admitted"),
            (disks(&[]), "a", 101, "no memory"),
            (disks(&[("a", 60)]), "a", 1, "no share"),
            (disks(&[("a", 60)]), "a", 41, "no memory"),
            (disks(&[("a", 30)]), "a", 20, "admitted"),
            (disks(&[("a", 30)]), "a", 21, "no share"),
            (disks(&[("a", 50)]), "b", 50, "admitted"),
            (disks(&[("a", 50), ("b", 20)]), "b", 30, "admitted"),
            (disks(&[("a", 50), ("b", 20)]), "b", 31, "no memory"),
            (disks(&[("", 60)]), "", 40, "admitted"),
            (disks(&[("", 60)]), "a", 40, "admitted"),
            (disks(&[("a", u64::MAX), ("a", 1)]), "b", 1, "no memory"),
        ];
        for (others, namespace, needed, expected) in table {
            let admitted = match admit(100, others.clone(), namespace, needed) {
                Ok(()) => "admitted",
                Err(Error::NoMemory { .. }) => "no memory",
                Err(Error::NoShare { .. }) => "no share",
                Err(error) => panic!("{error}"),
            };
            assert_eq!(admitted, expected, "{others:?} {namespace} {needed}");
        }
    }
}

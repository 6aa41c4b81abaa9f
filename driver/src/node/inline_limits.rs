//! Limits on the inline volumes of a node: the size of each, their number and their total size.
//!
//! Any user who may create a pod may request inline volumes, and no Kubernetes quota counts them.
//! So one namespace gets half of them at most.

use std::collections::HashMap;
use std::sync::Arc;

use hostloop_terminal::humanize::exact_bytes;

use super::inline_attributes::{SIZE, field};
use super::{Error, Result};
use crate::csi::capacity_range::DEFAULT_BYTES;
use crate::csi::validate::{SizeRange, invalid};
use crate::kernel::FsType;
use crate::kernel::under_way::{UnderWay, UnderWayGuard};
use crate::record::namespace_of;
use crate::storage::VolumeRecord;

/// Limits on the inline volumes of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineLimits {
    /// Maximum size of one inline volume, in bytes (`--max-inline-size`).
    pub size: u64,
    /// Maximum number of inline volumes at once (`--max-inline-volumes`).
    pub volumes: usize,
    /// Maximum total size, in bytes (`--max-inline-total`).
    pub total: u64,
}

impl Default for InlineLimits {
    fn default() -> Self {
        InlineLimits {
            size: 1 << 30,
            volumes: 64,
            total: 16 << 30,
        }
    }
}

impl InlineLimits {
    /// The size of a new inline volume: at least its filesystem's minimum, as for CreateVolume.
    /// More than the limit is an error. Without a requested size it is [`DEFAULT_BYTES`], or the
    /// limit if that is less.
    pub(super) fn size_of_new(&self, requested: Option<u64>, fs: FsType) -> Result<u64> {
        let range = SizeRange {
            required: requested.unwrap_or_else(|| DEFAULT_BYTES.min(self.size)),
            limit: None,
        };
        let size = range.size(fs.minimum_bytes());
        let size = size.ok_or_else(|| invalid(field(SIZE), "is too large"))?;
        if size <= self.size {
            Ok(size)
        } else {
            Err(Error::OutOfRange(format!(
                "{}: the volume would have {}, and {} are allowed (--max-inline-size)",
                field(SIZE),
                exact_bytes(size),
                exact_bytes(self.size)
            )))
        }
    }

    /// What one namespace may have of this. One volume of the largest size always fits.
    fn share(&self) -> InlineLimits {
        InlineLimits {
            size: self.size,
            volumes: self.volumes.div_ceil(2),
            total: (self.total / 2).max(self.size.min(self.total)),
        }
    }

    /// Checks that one more volume of `bytes` of this namespace fits, given the namespaces and the
    /// sizes of the others.
    fn admit(&self, others: &[(&str, u64)], namespace: &str, bytes: u64) -> Result<()> {
        self.fit(NODE, others.iter().map(|(_, bytes)| *bytes), bytes)?;
        if namespace.is_empty() {
            // Kubelet has not named it. All of the node's pods may be of one namespace then.
            return Ok(());
        }
        let its = others.iter().filter(|(other, _)| *other == namespace);
        self.share()
            .fit(NAMESPACE, its.map(|(_, bytes)| *bytes), bytes)
    }

    /// Checks that one more volume of `bytes` is within these limits, given the sizes of the
    /// others. `subject` has these limits, for people.
    fn fit(&self, subject: &str, others: impl Iterator<Item = u64>, bytes: u64) -> Result<()> {
        let (volumes, total) = others.fold((1, bytes), |(n, sum): (usize, u64), other| {
            (n + 1, sum.saturating_add(other))
        });
        if volumes > self.volumes {
            return Err(Error::ResourceExhausted(format!(
                "{subject} would have {volumes} inline volumes, and {} are allowed \
                 (--max-inline-volumes)",
                self.volumes
            )));
        }
        if total > self.total {
            return Err(Error::ResourceExhausted(format!(
                "the inline volumes of {subject} would have {} together, and {} are allowed \
                 (--max-inline-total)",
                exact_bytes(total),
                exact_bytes(self.total)
            )));
        }
        Ok(())
    }
}

/// What has limits, for people.
const NODE: &str = "the node";
const NAMESPACE: &str = "the pod's namespace, which may have half of what the node may,";

/// Inline volumes that are being created: their namespaces and sizes in bytes, by handle.
#[derive(Debug, Default)]
pub(super) struct NewInlineVolumes(UnderWay<String, (String, u64)>);

/// Counts as an inline volume. Releases on drop: the index already counts the volume.
pub(super) type Admitted<'a> = UnderWayGuard<'a, String, (String, u64)>;

impl NewInlineVolumes {
    /// Admits one more volume, besides those being created and those that `existing` finds.
    /// `existing` runs under the lock. A volume enters the index before it leaves this table, so
    /// each one is counted. Handles show duplicates.
    pub(super) fn admit(
        &self,
        limits: &InlineLimits,
        handle: &str,
        namespace: &str,
        bytes: u64,
        existing: impl FnOnce() -> Vec<Arc<VolumeRecord>>,
    ) -> Result<Admitted<'_>> {
        let own = (namespace.to_owned(), bytes);
        self.0.enter_if(handle.to_owned(), own, |making| {
            let existing = existing();
            let others: HashMap<&str, (&str, u64)> = existing
                .iter()
                .filter_map(|record| {
                    let namespace = namespace_of(&record.parameters);
                    Some((
                        record.inline.as_deref()?,
                        (namespace, record.capacity_bytes),
                    ))
                })
                .chain(making.iter().map(|(handle, (namespace, bytes))| {
                    (handle.as_str(), (namespace.as_str(), *bytes))
                }))
                .filter(|(other, _)| *other != handle)
                .collect();
            let others: Vec<_> = others.into_values().collect();
            limits.admit(&others, namespace, bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{MI, code};

    #[test]
    fn the_size_is_what_is_asked_for_within_the_limits() {
        let limits = |size| InlineLimits {
            size,
            ..InlineLimits::default()
        };
        let table = [
            (None, FsType::Ext4, 1024 * MI, Some(1024 * MI)),
            (None, FsType::Ext4, 64 * MI, Some(64 * MI)),
            (None, FsType::Ext4, 4096 * MI, Some(1024 * MI)),
            (Some(64 * MI), FsType::Ext4, 64 * MI, Some(64 * MI)),
            (Some(64 * MI + 1), FsType::Ext4, 64 * MI, None),
            (Some(MI + 1), FsType::Ext4, 64 * MI, Some(MI + 4096)),
            (Some(5000), FsType::Ext4, 64 * MI, Some(MI)),
            // The filesystem's minimum applies.
            (Some(64 * MI), FsType::Xfs, 300 * MI, Some(300 * MI)),
            (Some(64 * MI), FsType::Xfs, 299 * MI, None),
            (None, FsType::Xfs, 64 * MI, None),
        ];
        for (requested, fs, most, expected) in table {
            let got = code(limits(most).size_of_new(requested, fs));
            let expected = expected.ok_or(tonic::Code::OutOfRange);
            assert_eq!(got, expected, "{requested:?} {fs} {most}");
        }
        refused!(
            limits(u64::MAX).size_of_new(Some(u64::MAX), FsType::Ext4),
            Error::Invalid(_)
        );
    }

    #[test]
    fn number_and_sum_are_limited() {
        let limits = InlineLimits {
            size: 100,
            volumes: 3,
            total: 200,
        };
        let table: [(&[u64], u64, bool); 8] = [
            (&[], 100, true),
            (&[100], 100, true),
            (&[100], 101, false),
            (&[150], 50, true),
            (&[1, 1], 1, true),
            (&[1, 1, 1], 1, false),
            (&[u64::MAX], 1, false),
            (&[u64::MAX, u64::MAX], u64::MAX, false),
        ];
        for (others, bytes, fits) in table {
            let others: Vec<_> = others.iter().map(|bytes| ("", *bytes)).collect();
            let admitted = limits.admit(&others, "", bytes);
            assert_eq!(admitted.is_ok(), fits, "{others:?} {bytes}");
            let exhausted = matches!(admitted, Err(Error::ResourceExhausted(_)));
            assert_eq!(exhausted, !fits);
        }
        let none = InlineLimits {
            volumes: 0,
            ..limits
        };
        assert!(none.admit(&[], "", 1).is_err());
    }

    #[test]
    fn a_namespace_has_half_at_most() {
        let limits = InlineLimits {
            size: 100,
            volumes: 5,
            total: 400,
        };
        type Case<'a> = (&'a [(&'a str, u64)], &'a str, u64, bool);
        let table: [Case<'_>; 8] = [
            (&[("a", 1), ("a", 1)], "a", 1, true),
            (&[("a", 1), ("a", 1), ("a", 1)], "a", 1, false),
            (&[("a", 1), ("a", 1), ("a", 1)], "b", 1, true),
            // Of a kubelet that names no pods, or of a volume of an earlier release.
            (&[("a", 1), ("a", 1), ("a", 1)], "", 1, true),
            (&[("", 1), ("", 1), ("", 1)], "a", 1, true),
            (&[("a", 100)], "a", 100, true),
            (&[("a", 100), ("a", 100)], "a", 1, false),
            (&[("a", 100), ("a", 100)], "b", 100, true),
        ];
        for (others, namespace, bytes, fits) in table {
            let admitted = limits.admit(others, namespace, bytes);
            assert_eq!(admitted.is_ok(), fits, "{others:?} {namespace} {bytes}");
        }
        let large = InlineLimits {
            size: 300,
            ..limits
        };
        assert!(large.admit(&[], "a", 300).is_ok());
        assert!(large.admit(&[("a", 300)], "a", 1).is_err());
    }

    #[test]
    fn what_is_being_made_counts_until_it_is_made_or_has_failed() {
        let limits = InlineLimits {
            size: 100,
            volumes: 2,
            total: 100,
        };
        let making = NewInlineVolumes::default();
        let admit = |handle, bytes| making.admit(&limits, handle, "", bytes, Vec::new);
        let one = admit("one", 60).unwrap();
        assert!(admit("two", 41).is_err());
        let two = admit("two", 40).unwrap();
        assert!(admit("three", 0).is_err());
        drop(one);
        assert!(admit("three", 61).is_err());
        drop(two);
        assert!(admit("three", 100).is_ok());
    }
}

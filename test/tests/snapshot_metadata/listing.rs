//! What a backup tool lists.

use hostloop_test::front::fields::list;
use serde_json::Value;

/// The ranges of a snapshot that hold data or have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listing {
    /// The size of the volume.
    pub(crate) capacity: u64,
    /// Offset and end of each range, in order.
    pub(crate) ranges: Vec<(u64, u64)>,
    /// How many messages they came in.
    pub(crate) messages: usize,
}

impl Listing {
    /// Reads what the client prints as JSON.
    pub(crate) fn read(printed: &str) -> Listing {
        let messages: Vec<Value> =
            serde_json::from_str(printed).unwrap_or_else(|e| panic!("{e}: {printed}"));
        let capacity = messages.first().map_or(0, |first| {
            assert!(
                messages
                    .iter()
                    .all(|one| one["volume_capacity_bytes"] == first["volume_capacity_bytes"]),
                "{printed}"
            );
            number(&first["volume_capacity_bytes"])
        });
        let ranges: Vec<(u64, u64)> = messages
            .iter()
            .flat_map(|message| list(&message["block_metadata"]))
            .map(|block| {
                let offset = number(&block["byte_offset"]);
                (offset, offset + number(&block["size_bytes"]))
            })
            .collect();
        let listing = Listing {
            capacity,
            ranges,
            messages: messages.len(),
        };
        assert!(listing.is_in_order(), "{printed}");
        listing
    }

    /// True if no range is empty, or begins before the end of the one before it.
    fn is_in_order(&self) -> bool {
        let mut last = 0;
        self.ranges.iter().all(|(offset, end)| {
            let follows = *offset >= last && end > offset && *end <= self.capacity;
            last = *end;
            follows
        })
    }

    /// The bytes of all ranges.
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(offset, end)| end - offset).sum()
    }

    /// True if all bytes from `offset` to `end` are listed.
    pub(crate) fn covers(&self, offset: u64, end: u64) -> bool {
        let mut at = offset;
        for (from, to) in &self.ranges {
            if *from <= at && at < *to {
                at = *to;
            }
        }
        at >= end
    }

    /// True if none of these bytes is listed.
    pub(crate) fn leaves_out(&self, offset: u64, end: u64) -> bool {
        self.ranges
            .iter()
            .all(|(from, to)| end <= *from || *to <= offset)
    }

    /// The offset of the last bytes that are not listed.
    pub(crate) fn last_hole(&self) -> u64 {
        const SIZE: u64 = 64 << 10;
        let mut end = self.capacity;
        for (from, to) in self.ranges.iter().rev() {
            if end - to >= SIZE {
                break;
            }
            end = *from;
        }
        assert!(end >= SIZE, "all bytes are listed: {self:?}");
        end - SIZE
    }
}

/// A number, which is left out if it is 0.
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

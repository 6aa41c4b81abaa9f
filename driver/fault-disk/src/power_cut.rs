//! What a power cut leaves of the writes that were not flushed.

pub use hostloop_report::fault_disk::Loss;
use serde::{Deserialize, Serialize};

use crate::draw::Draws;

/// The sectors of a disk that a tearing cut keeps or loses as a whole.
const SMALL_SECTOR: usize = 512;

/// What a power cut has done to a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PowerCutReport {
    /// The disk.
    pub name: String,
    /// How many writes were not flushed.
    pub unflushed: usize,
    /// How many of them are lost as a whole.
    pub lost: usize,
    /// How many of them are there in parts.
    pub torn: usize,
}

/// What becomes of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Lost,
    Whole,
    Torn,
}

pub(crate) fn outcome(loss: Loss, draws: &mut Draws) -> WriteOutcome {
    let may_tear = matches!(loss, Loss::TornBlocks | Loss::TornSectors);
    if loss == Loss::All || draws.takes(0.5) {
        WriteOutcome::Lost
    } else if may_tear && draws.takes(0.5) {
        WriteOutcome::Torn
    } else {
        WriteOutcome::Whole
    }
}

/// Brings what a torn write keeps of a block into the block.
pub(crate) fn tear(loss: Loss, draws: &mut Draws, block: &mut [u8], written: &[u8]) {
    let sector = if loss == Loss::TornSectors {
        SMALL_SECTOR
    } else {
        block.len().max(1)
    };
    let sectors = block.chunks_mut(sector).zip(written.chunks(sector));
    for (before, after) in sectors {
        if before.len() == after.len() && draws.takes(0.5) {
            before.copy_from_slice(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Of 1,000 writes, how many are lost and torn.
    #[rstest]
    #[case(Loss::All, 1000..=1000, 0..=0)]
    #[case(Loss::Some, 430..=570, 0..=0)]
    #[case(Loss::TornBlocks, 430..=570, 200..=300)]
    #[case(Loss::TornSectors, 430..=570, 200..=300)]
    fn outcomes(
        #[case] loss: Loss,
        #[case] lost: std::ops::RangeInclusive<usize>,
        #[case] torn: std::ops::RangeInclusive<usize>,
    ) {
        let mut draws = Draws::new(3);
        let outcomes: Vec<_> = (0..1000).map(|_| outcome(loss, &mut draws)).collect();
        let count = |outcome| outcomes.iter().filter(|each| **each == outcome).count();
        let (are_lost, are_torn) = (count(WriteOutcome::Lost), count(WriteOutcome::Torn));
        assert!(lost.contains(&are_lost), "{are_lost}");
        assert!(torn.contains(&are_torn), "{are_torn}");
    }

    #[test]
    fn a_torn_block_has_whole_sectors_of_both() {
        let mut draws = Draws::new(3);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut block = [1; 4096];
            tear(Loss::TornSectors, &mut draws, &mut block, &[2; 4096]);
            for sector in block.chunks(512) {
                assert!(sector.iter().all(|byte| *byte == sector[0]));
            }
            seen.insert(block.chunks(512).filter(|sector| sector[0] == 2).count());

            let mut block = [1; 4096];
            tear(Loss::TornBlocks, &mut draws, &mut block, &[2; 4096]);
            assert!(block.iter().all(|byte| *byte == block[0]));
        }
        assert!(seen.len() > 5, "{seen:?}");
    }
}

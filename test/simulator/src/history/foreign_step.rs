//! What users of another driver do. It has draws of its own, so that no other step changes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;

/// Something that a user of another driver does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub(crate) enum ForeignStep {
    /// Creates a claim.
    Claim { name: String },
    /// Deletes a claim.
    DeleteClaim { name: String },
    /// Creates a pod that uses a claim.
    Pod { name: String, claim: String },
    /// Deletes a pod.
    DeletePod { name: String },
    /// Takes a snapshot of a claim.
    Snapshot { name: String, claim: String },
    /// Deletes a snapshot.
    DeleteSnapshot { name: String },
    /// Deletes the content of the snapshot that was there before.
    DeleteContent,
    /// Deletes the volume object that was there before.
    DeleteVolume,
}

impl ForeignStep {
    /// What a user of another driver does at this step of a history, if anything.
    pub(super) fn at(seed: u64, step: u64) -> Option<ForeignStep> {
        /// Of so many steps in a hundred, one is of this kind.
        const CHANCE: u64 = 4;
        let mut dice = Dice::of(seed, "others", step);
        dice.percent(CHANCE).then(|| ForeignStep::any(&mut dice))
    }

    fn any(dice: &mut Dice) -> ForeignStep {
        let draw = dice.below(100);
        let name = match draw {
            0..45 => dice.pick(&["other-bound", "other-pending", "other-c0", "other-c1"]),
            45..70 => dice.pick(&["other-p0", "other-p1"]),
            _ => dice.pick(&["other-taken", "other-s0", "other-s1"]),
        };
        let (name, claim) = ((*name).to_owned(), "other-bound".to_owned());
        match draw {
            0..25 => ForeignStep::Claim { name },
            25..45 => ForeignStep::DeleteClaim { name },
            45..60 => ForeignStep::Pod { name, claim },
            60..70 => ForeignStep::DeletePod { name },
            70..83 => ForeignStep::Snapshot { name, claim },
            83..94 => ForeignStep::DeleteSnapshot { name },
            94..97 => ForeignStep::DeleteContent,
            _ => ForeignStep::DeleteVolume,
        }
    }
}

impl fmt::Display for ForeignStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("of another driver: ")?;
        match self {
            ForeignStep::Claim { name } => write!(f, "claim {name}"),
            ForeignStep::DeleteClaim { name } => write!(f, "delete claim {name}"),
            ForeignStep::Pod { name, claim } => write!(f, "pod {name} with {claim}"),
            ForeignStep::DeletePod { name } => write!(f, "delete pod {name}"),
            ForeignStep::Snapshot { name, claim } => {
                write!(f, "snapshot {name} of claim {claim}")
            }
            ForeignStep::DeleteSnapshot { name } => write!(f, "delete snapshot {name}"),
            ForeignStep::DeleteContent => f.write_str("delete the content of the first snapshot"),
            ForeignStep::DeleteVolume => f.write_str("delete the volume object of the first claim"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_have_all_steps_and_keep_them() {
        let mut kinds = std::collections::HashSet::new();
        for step in (0..20_000).filter_map(|step| ForeignStep::at(1, step)) {
            kinds.insert(std::mem::discriminant(&step));
            let text = serde_json::to_string(&step).expect("JSON");
            let again: ForeignStep = serde_json::from_str(&text).expect("a step");
            assert_eq!(again, step, "{step}");
        }
        assert_eq!(kinds.len(), 8);
    }
}

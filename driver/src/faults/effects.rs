//! The table of faults: what each does, and what undoes it.

use hostloop_controllers::api::claim_fault::FaultKind;

use super::target::Target;
use super::{FaultError, Obstacle, fault_disk, frozen, full, powercut, read_only, size_limit};

/// What a fault does.
pub(super) struct FaultEffect {
    /// The word of the annotation.
    pub(super) name: &'static str,
    /// Why a volume can't have it; `None` if it can.
    pub(super) obstacle: fn(&Target<'_>, FaultKind) -> Option<Obstacle>,
    /// The number of bytes to which it limits the loop device, if it does.
    pub(super) limit: fn(&Target<'_>, FaultKind) -> Option<u64>,
    /// Causes it, unless it is there. The record has it already.
    pub(super) begin: fn(&Target<'_>) -> Result<(), FaultError>,
    /// Takes back what can be taken back, as far as it is there.
    pub(super) end: fn(&Target<'_>) -> Result<(), FaultError>,
}

static GONE: FaultEffect = FaultEffect {
    name: "gone",
    obstacle: size_limit::obstacle,
    limit: |_, _| Some(size_limit::GONE),
    begin: size_limit::set,
    end: size_limit::lift,
};

static EIO_FROM: FaultEffect = FaultEffect {
    name: "eio-from",
    obstacle: size_limit::obstacle,
    limit: |_, kind| match kind {
        FaultKind::EioFrom(offset) => Some(offset),
        _ => None,
    },
    begin: size_limit::set,
    end: size_limit::lift,
};

static POWERCUT: FaultEffect = FaultEffect {
    name: "powercut",
    obstacle: powercut::obstacle,
    limit: powercut::limit,
    begin: powercut::cut,
    end: size_limit::lift,
};

static FROZEN: FaultEffect = FaultEffect {
    name: "frozen",
    obstacle: frozen::obstacle,
    limit: |_, _| None,
    begin: frozen::freeze,
    end: frozen::thaw,
};

static READ_ONLY: FaultEffect = FaultEffect {
    name: "readonly",
    obstacle: read_only::obstacle,
    limit: |_, _| None,
    begin: read_only::turn,
    // Only a mount ends it.
    end: |_| Ok(()),
};

static FULL: FaultEffect = FaultEffect {
    name: "full",
    obstacle: full::obstacle,
    limit: |_, _| None,
    begin: full::fill,
    end: full::remove,
};

/// A fault of single operations of a fault disk.
const fn of_operations(name: &'static str) -> FaultEffect {
    FaultEffect {
        name,
        obstacle: fault_disk::obstacle,
        limit: |_, _| None,
        begin: fault_disk::set,
        end: fault_disk::clear,
    }
}

static EIO: FaultEffect = of_operations("eio");
static NO_SPACE: FaultEffect = of_operations("enospc");
static SLOW: FaultEffect = of_operations("slow");

static DISK_CUT: FaultEffect = FaultEffect {
    name: "powercut",
    obstacle: fault_disk::obstacle,
    limit: |_, _| None,
    begin: fault_disk::cut,
    // Only a new disk ends it.
    end: |_| Ok(()),
};

/// The effect of a fault.
pub(super) fn of(kind: FaultKind) -> &'static FaultEffect {
    match kind {
        FaultKind::Gone => &GONE,
        FaultKind::EioFrom(_) => &EIO_FROM,
        FaultKind::Powercut => &POWERCUT,
        FaultKind::Frozen => &FROZEN,
        FaultKind::ReadOnly => &READ_ONLY,
        FaultKind::Full => &FULL,
        FaultKind::Eio(_) => &EIO,
        FaultKind::NoSpace(_) => &NO_SPACE,
        FaultKind::Slow(..) => &SLOW,
        FaultKind::DiskCut(_) => &DISK_CUT,
    }
}

/// Ends the recorded fault. One that this build does not know is ended like all: each end takes back
/// only what is there.
pub(super) fn end(target: &Target<'_>) -> Result<(), FaultError> {
    let all = [
        &GONE, &EIO_FROM, &POWERCUT, &FROZEN, &READ_ONLY, &FULL, &EIO, &NO_SPACE, &SLOW, &DISK_CUT,
    ];
    let name = target.record.fault.as_ref().map_or("", |f| f.name());
    match all.iter().find(|effect| effect.name == name) {
        Some(effect) => (effect.end)(target),
        None => all.iter().try_for_each(|effect| (effect.end)(target)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hostloop_controllers::api::claim_fault::DiskOperations;
    use hostloop_report::fault_disk::Loss;

    use super::*;

    #[test]
    fn every_fault_has_an_effect() {
        use FaultKind::*;
        let all = DiskOperations::ALL;
        for kind in [
            Gone,
            EioFrom(4096),
            Powercut,
            Frozen,
            ReadOnly,
            Full,
            Eio(all),
            NoSpace(all),
            Slow(Duration::from_millis(1), all),
            DiskCut(Loss::All),
        ] {
            assert_eq!(of(kind).name, kind.name());
        }
    }
}

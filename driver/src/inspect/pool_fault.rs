//! `hostloop pool-fault`: asks the driver of this node for faults of its pools, and prints what it says
//! then. The command is hidden, because `kubectl hostloop fault node` is the one for people.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hostloop_controllers::api::pool_fault::{PoolFault, PoolFaultError};
use hostloop_report::node_faults::{NodeFaults, PoolFaultNow, PoolFaultState};
use hostloop_terminal::terminal;

use crate::cli::{PoolArgsError, PoolFaultArgs, PoolFaultCommand};
use crate::fault_disks::FaultDisks;
use crate::faults;
use crate::pool_faults::{FaultFiles, FaultFilesError, PoolFaultRequest};
use crate::record::now_ns;

/// How long the command waits for the driver, which looks every second.
const PATIENCE: Duration = Duration::from_secs(12);
/// The time between two looks.
const INTERVAL: Duration = Duration::from_millis(200);

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments contradict each other.
    #[error(transparent)]
    Arguments(#[from] PoolArgsError),
    #[error("no pool is named {name:?}; there are {known}")]
    UnknownPool { name: String, known: String },
    #[error("{fault}: {why}")]
    Fault {
        fault: String,
        #[source]
        why: PoolFaultError,
    },
    #[error(transparent)]
    Files(#[from] FaultFilesError),
    /// No driver has shown what it can do.
    #[error("no driver has run with this state directory: see --statedir")]
    NoDriver,
    #[error("the driver runs without --enable-faults, so its pools have no faults on request")]
    NotEnabled,
    #[error("the driver has not answered within {} s: is it running?", PATIENCE.as_secs())]
    NoAnswer,
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// Runs the command. Blocks.
pub fn run(args: &PoolFaultArgs) -> Result<ExitCode, Error> {
    let names = args.pools.specs()?.into_iter().map(|spec| spec.name);
    let names: Vec<String> = names.collect();
    let state_dir = args.pools.state_dir();
    let files = FaultFiles::at(&state_dir);
    let said = match &args.command {
        PoolFaultCommand::Set { pool, fault } => {
            check_pool(&names, pool)?;
            set(&files, pool, fault)?
        }
        PoolFaultCommand::Clear { pool } => {
            if let Some(pool) = pool {
                check_pool(&names, pool)?;
            }
            let cleared = names
                .into_iter()
                .filter(|name| pool.as_ref().is_none_or(|pool| pool == name))
                .collect();
            clear(&files, cleared)?
        }
        PoolFaultCommand::List => with_fault_disks(shown(&files)?, &state_dir),
    };
    terminal::print_json_line(&said)?;
    Ok(ExitCode::SUCCESS)
}

fn check_pool(names: &[String], pool: &str) -> Result<(), Error> {
    if names.iter().any(|name| name == pool) {
        return Ok(());
    }
    Err(Error::UnknownPool {
        name: pool.to_owned(),
        known: names.join(", "),
    })
}

/// Asks for a fault. A request that is refused is not kept, and neither is one without an answer.
fn set(files: &FaultFiles, pool: &str, text: &str) -> Result<NodeFaults, Error> {
    let fault = PoolFault::parse(text).map_err(|why| Error::Fault {
        fault: text.to_owned(),
        why,
    })?;
    if !shown(files)?.enabled {
        return Err(Error::NotEnabled);
    }
    let request = PoolFaultRequest {
        fault: fault.to_string(),
        requested_ns: now_ns(),
    };
    files.request(pool, Some(request.clone()))?;
    let said = until(files, |said| {
        now_of(said, pool).is_some_and(|now| now.requested_ns == request.requested_ns)
    });
    let is_kept = said
        .as_ref()
        .ok()
        .and_then(|said| now_of(said, pool))
        .is_some_and(|now| now.state == PoolFaultState::Active);
    if !is_kept {
        files.request(pool, None)?;
    }
    said
}

/// Asks for no fault of these pools.
fn clear(files: &FaultFiles, pools: Vec<String>) -> Result<NodeFaults, Error> {
    for pool in &pools {
        files.request(pool, None)?;
    }
    until(files, |said| {
        let mut left = pools.iter().filter_map(|pool| now_of(said, pool));
        left.all(|now| now.state == PoolFaultState::Failed)
    })
}

/// What the driver says, and what its server of fault disks says. It may be there or not at any time,
/// so only a person's question looks for it.
fn with_fault_disks(said: NodeFaults, state_dir: &Path) -> NodeFaults {
    let disks = FaultDisks::of(state_dir);
    let listed = disks.list();
    let obstacle = disks.obstacle(&listed);
    NodeFaults {
        fault_disks: if said.enabled {
            faults::offered_by_fault_disks(obstacle.as_deref())
        } else {
            Vec::new()
        },
        served_disks: listed.ok().map(Option::unwrap_or_default),
        ..said
    }
}

/// Waits until the driver says this.
fn until(files: &FaultFiles, is_said: impl Fn(&NodeFaults) -> bool) -> Result<NodeFaults, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = shown(files)?;
        if is_said(&said) {
            return Ok(said);
        }
        if Instant::now() >= deadline {
            return Err(Error::NoAnswer);
        }
        sleep(INTERVAL);
    }
}

fn shown(files: &FaultFiles) -> Result<NodeFaults, Error> {
    files.shown()?.ok_or(Error::NoDriver)
}

fn now_of<'f>(said: &'f NodeFaults, pool: &str) -> Option<&'f PoolFaultNow> {
    let mut pools = said.pools.iter();
    pools.find(|of| of.pool == pool)?.now.as_ref()
}

#[cfg(test)]
mod tests {
    use hostloop_fault_disk::protocol::Answer;

    use super::*;
    use crate::fault_disks::testing;
    use crate::pool_faults::PoolFaults;
    use crate::testkit::Site;

    #[test]
    fn without_a_driver_nothing_is_requested() {
        let dir = tempfile::tempdir().unwrap();
        let files = FaultFiles::at(dir.path());
        for tried in [set(&files, "a", "full"), shown(&files)] {
            assert!(matches!(tried, Err(Error::NoDriver)), "{tried:?}");
        }
        assert!(matches!(set(&files, "a", "fall"), Err(Error::Fault { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn without_the_flag_nothing_is_requested() {
        let site = Site::fake(&["a"]);
        let _faults = PoolFaults::new(site.pools().clone(), false);
        let files = FaultFiles::at(&site.options.state_dir);
        let refused = set(&files, "a", "full").unwrap_err().to_string();
        assert!(refused.contains("without --enable-faults"), "{refused}");
        let cleared = clear(&files, vec!["a".to_owned()]).unwrap();
        assert_eq!(now_of(&cleared, "a"), None);
        assert!(!cleared.enabled);
    }

    #[test]
    fn faults_of_fault_disks_need_their_server() {
        let dir = tempfile::tempdir().unwrap();
        let said = NodeFaults {
            enabled: true,
            ..NodeFaults::default()
        };
        let look = || with_fault_disks(said.clone(), dir.path());
        let without = look();
        let mut offered = without.fault_disks.iter();
        let eio = offered.find(|offered| offered.fault == "eio").unwrap();
        let why = eio.obstacle.as_ref().unwrap();
        assert!(why.contains("fault-disks"), "{why}");
        assert_eq!(without.served_disks, Some(Vec::new()));

        testing::answer_all(dir.path(), &Answer::Refused("no".to_owned()));
        assert_eq!(look().served_disks, None);

        let served = vec!["vol-1".to_owned()];
        testing::answer_all(dir.path(), &Answer::Disks(served.clone()));
        let with = look();
        assert_eq!(with.fault_disks.len(), without.fault_disks.len());
        let mut offered = with.fault_disks.iter();
        assert!(offered.all(|offered| offered.obstacle.is_none()));
        assert_eq!(with.served_disks, Some(served.clone()));

        let off = with_fault_disks(NodeFaults::default(), dir.path());
        assert!(off.fault_disks.is_empty());
        assert_eq!(off.served_disks, Some(served));
    }
}

//! Two processes with the cluster-wide controllers in front of one driver. One of them leads.

use std::iter::repeat_n;
use std::path::PathBuf;
use std::time::Duration;

use hostloop_test::PATIENCE;
use hostloop_test::fleet::patience::in_time;
use hostloop_test::fleet::{Binding, Fleet};
use hostloop_test::front::objects::Place;
use hostloop_test::front::process::{self, Controllers};
use hostloop_test::memory::{Call, Step};

use crate::{
    LASTING_LEASE, QUICK, accounts, beside_others, claims, cluster, patience, spec, writes,
};

struct Replica {
    name: &'static str,
    user: String,
    controllers: Controllers,
}

/// The names of the two processes and of their pods.
const NAMES: [&str; 2] = ["central-a", "central-b"];
/// The number of workers of each process.
const WORKERS: usize = 10;
const CREATE: &str = "CreateVolume";

struct Central {
    fleet: Fleet,
    replicas: Vec<Replica>,
    addresses: Vec<String>,
    files: Vec<PathBuf>,
    dir: Logs,
}

/// The directory of their logs.
struct Logs(tempfile::TempDir);

impl Drop for Logs {
    /// Prints the logs of a failed test.
    fn drop(&mut self) {
        for name in NAMES.iter().filter(|_| std::thread::panicking()) {
            let tail = process::tail(&self.0.path().join(name));
            eprintln!("--- {name}:\n{tail}");
        }
    }
}

impl Central {
    /// Starts both processes for one driver, each with its own socket.
    async fn up() -> Central {
        let (users, files, dir) = accounts(&NAMES).await;
        let mut fleet = spec("central", 1).up(&cluster().await.kubeconfig()).await;
        let driver = &mut fleet.members[0].driver;
        let second = driver.also_at(dir.path().join("second.sock"));
        let addresses = vec![driver.endpoint(), second];
        let mut central = Central {
            fleet,
            replicas: Vec::new(),
            addresses,
            files,
            dir: Logs(dir),
        };
        for (number, user) in users.into_iter().enumerate() {
            let controllers = central.start(number);
            central.replicas.push(Replica {
                name: NAMES[number],
                user,
                controllers,
            });
        }
        central
    }

    fn start(&self, number: usize) -> Controllers {
        let mut args = vec![
            format!("--csi-address={}", self.addresses[number]),
            format!("--kubeconfig={}", self.files[number].display()),
            "--controllers=provisioner".to_owned(),
            "--node-deployment=false".to_owned(),
            "--leader-election=true".to_owned(),
            format!("--worker-threads={WORKERS}"),
        ];
        // A leader that loses its lease ends, and this test does not restart it.
        args.extend(
            [QUICK, LASTING_LEASE]
                .concat()
                .into_iter()
                .map(str::to_owned),
        );
        let dir = self.dir.0.path().join(NAMES[number]);
        std::fs::create_dir_all(&dir).expect("a directory can be made");
        Controllers::in_pod(&dir, &self.fleet.namespace, Some(NAMES[number]), &args)
    }

    /// The number of the process that holds the lease.
    async fn leader(&self, not: Option<usize>) -> usize {
        let name = self.fleet.driver_name.replace('.', "-");
        let lease = Place::of("Lease", &self.fleet.namespace, &name);
        in_time("a leader", PATIENCE, async || {
            let lease = self.fleet.objects.get(&lease).await.unwrap_or_default();
            let holder = &lease["spec"]["holderIdentity"];
            let mut replicas = self.replicas.iter();
            let number = replicas.position(|replica| *holder == replica.name);
            let number = number.filter(|number| Some(*number) != not);
            number.ok_or_else(|| format!("held by {holder}"))
        })
        .await
    }

    /// Pauses a process in the middle of its work. After some volumes, each of its workers waits
    /// for an answer, or repeats its call after the timeout. Otherwise a write to the API server could
    /// wait in the process during the pause and leave after it.
    async fn pause(&self, old: usize, volumes: usize) {
        let driver = &self.fleet.members[0].driver;
        let steps = repeat_n(Step::Pass, volumes).chain(repeat_n(Step::DropAnswer, WORKERS));
        driver.script(CREATE, steps);
        in_time("its workers wait", patience(), async || {
            match driver.steps_left(CREATE) {
                0 => Ok(()),
                left => Err(format!("after {left} more calls")),
            }
        })
        .await;
        self.replicas[old].controllers.pause();
    }
}

/// True if only the leader may make this call.
fn is_work(call: &Call) -> bool {
    matches!(call.method, CREATE | "DeleteVolume")
}

/// The leader is paused in the middle of its work until its lease expires and the other process
/// leads. After it resumes, it writes nothing and makes no calls to the driver. Then the roles
/// change.
#[tokio::test(flavor = "multi_thread")]
async fn one_leads_at_any_time() {
    const TURNS: usize = 2;
    let _turn = beside_others().await;
    let count = claims() / 3;
    let mut central = Central::up().await;
    for turn in 0..TURNS {
        let numbers = turn * count..(turn + 1) * count;
        let old = central.leader(None).await;
        let storm = central.fleet.storm(Binding::Immediate, numbers);
        tokio::join!(storm, central.pause(old, count / 10));
        let new = central.leader(Some(old)).await;
        central.fleet.bound((turn + 1) * count, patience()).await;
        central.silent_on_return(old).await;
        // A process that loses its lease ends, and kubelet starts it again.
        central.replicas[old].controllers = central.start(old);
        println!("{} led, then {}", NAMES[old], NAMES[new]);
    }
    central.fleet.each_once(patience()).await;
    central.fleet.clear(patience()).await;
    one_after_the_other(&central.fleet.members[0].driver.calls(), TURNS);
    let replicas = std::mem::take(&mut central.replicas);
    tokio::task::block_in_place(|| replicas.into_iter().for_each(|r| r.controllers.stop()));
    central.fleet.down().await;
}

impl Central {
    /// Resumes a process that was paused while it led. Panics if it does anything that only a
    /// leader may do.
    async fn silent_on_return(&self, old: usize) {
        let driver = &self.fleet.members[0].driver;
        let (before, calls) = (cluster().await.audit(), driver.calls().len());
        self.replicas[old].controllers.resume();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let since = cluster().await.audit().since(&before);
        let user = &self.replicas[old].user;
        let wrote: Vec<_> = since.of(user).into_iter().filter(|r| writes(r)).collect();
        assert!(wrote.is_empty(), "the former leader wrote {wrote:?}");
        let asked = driver.calls().split_off(calls);
        let mut asked = asked.iter().filter(|c| c.door == old && is_work(c));
        let asked = asked.next();
        assert!(asked.is_none(), "the former leader called {asked:?}");
    }
}

/// One leader's work ends before the next one's begins, and the lead changes no more often than the
/// test forces it to.
fn one_after_the_other(calls: &[Call], turns: usize) {
    let calls: Vec<_> = calls.iter().filter(|call| is_work(call)).collect();
    let mut changes = 0;
    for (number, pair) in calls.windows(2).enumerate() {
        let [before, after] = pair else { continue };
        if before.door == after.door {
            continue;
        }
        changes += 1;
        let under_way = calls[..=number]
            .iter()
            // A call without an answer was executed at once.
            .filter(|call| call.answered.is_some_and(|at| at > after.at));
        assert_eq!(under_way.count(), 0, "{before:?} and {after:?} overlap");
    }
    assert_eq!(changes, turns, "the work went over from one to the other");
}

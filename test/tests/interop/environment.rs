//! Nothing that a script or a test starts looks for the cluster of the person who runs it.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostloop_test::PATIENCE;
use hostloop_test::driver::binary;
use hostloop_test::front::process::Controllers;
use hostloop_test::machine::{self, root, text, tool_cache};
use hostloop_test::plugin;
use hostloop_test::process::{Process, common};
use hostloop_test::scratch::Scratch;
use parking_lot::Mutex;

/// The variable that makes a process of this program play the tests of that person.
const PLAYS_TESTS: &str = "HOSTLOOP_TEST_PLAYS_TESTS";
const NAME: &str = "environment::no_program_looks_for_the_persons_cluster";

/// Controllers that need a cluster, and no driver.
const ALONE: [&str; 2] = ["--leader-tasks=only", "--drivername=none.csi.dev"];

/// Starts programs that look for a cluster, as scripts do.
const SCRIPT: &str = r#"
set -euo pipefail
. "$1/scripts/lib.sh"
need_kubectl
for command in "$4 check" "$2 controllers $3" "$kubectl get nodes"; do
  if timeout 2 $command; then exit 3; fi
done
"#;

/// An API server that only counts who connects, and its kubeconfig.
struct Listener {
    kubeconfig: PathBuf,
    port: u16,
    /// The port of each client, in the order of their connections.
    clients: Arc<Mutex<Vec<u16>>>,
}

impl Listener {
    fn at(kubeconfig: PathBuf) -> Listener {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let content = format!(
            "{{apiVersion: v1, kind: Config, current-context: c,
            contexts: [{{name: c, context: {{cluster: c, user: u}}}}],
            clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}],
            users: [{{name: u, user: {{}}}}]}}"
        );
        std::fs::write(&kubeconfig, content).expect("it can be written");
        let clients = Arc::new(Mutex::new(Vec::new()));
        let accepted = clients.clone();
        std::thread::spawn(move || {
            loop {
                if let Ok((_, client)) = listener.accept() {
                    accepted.lock().push(client.port());
                }
            }
        });
        Listener {
            kubeconfig,
            port,
            clients,
        }
    }

    /// The number of those who have connected so far. A connection of its own comes after them, and
    /// shows that all of them are counted.
    fn count(&self) -> usize {
        let last = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        let last = last.local_addr().expect("it has an address").port();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut clients = self.clients.lock();
            if let Some(place) = clients.iter().rposition(|client| *client == last) {
                clients.remove(place);
                return clients.len();
            }
            drop(clients);
            assert!(Instant::now() < deadline, "it accepts nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for(&self, process: &Process) {
        let deadline = Instant::now() + PATIENCE;
        while self.count() == 0 {
            assert!(
                Instant::now() < deadline,
                "nothing connects: {}",
                process.tail()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A command in the environment of a person with a cluster, who works in a pod of another.
#[expect(
    clippy::disallowed_methods,
    reason = "only what it starts must make its environment"
)]
fn of_person(program: &Path, home: &Path, theirs: &Listener) -> Command {
    let mut command = Command::new(program);
    command
        .env("HOSTLOOP_CACHE", tool_cache())
        .env("HOME", home)
        .env("KUBECONFIG", &theirs.kubeconfig)
        .env(
            "HELM_KUBEAPISERVER",
            format!("http://127.0.0.1:{}", theirs.port),
        )
        .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        .env("KUBERNETES_SERVICE_PORT", theirs.port.to_string());
    command
}

#[test]
fn no_program_looks_for_the_persons_cluster() {
    if std::env::var_os(PLAYS_TESTS).is_some() {
        return start_programs();
    }
    let scratch = Scratch::new();
    let home = scratch.dir("home");
    let theirs = Listener::at(scratch.dir("home/.kube").join("config"));
    let run = |mut command: Command| {
        let output = command.output().expect("it can be run");
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    let mut inherits = of_person(&plugin::binary(), &home, &theirs);
    inherits.arg("check");
    let (_, said) = run(inherits);
    let count = theirs.count();
    assert!(count > 0, "the listener counts who connects: {said}");

    let bash = machine::which("bash").expect("scripts need it");
    let mut script = of_person(&bash, &home, &theirs);
    script.args([
        "-c",
        SCRIPT,
        "script",
        text(&root()),
        text(&binary()),
        &ALONE.join(" "),
        text(&plugin::binary()),
    ]);
    let (success, said) = run(script);
    assert!(success, "{said}");
    assert_eq!(theirs.count(), count, "a script: {said}");

    let tests = std::env::current_exe().expect("it has a path");
    let mut tests = of_person(&tests, &home, &theirs);
    tests
        .args(["--exact", NAME, "--nocapture"])
        .env(PLAYS_TESTS, "yes");
    let (success, said) = run(tests);
    assert!(success, "{said}");
    assert_eq!(theirs.count(), count, "a test: {said}");
}

/// What tests do: a program gets the address of its cluster, or finds none.
fn start_programs() {
    let scratch = Scratch::new();
    let given = Listener::at(scratch.path().join("theirs"));
    let args = common("unix:///none", &given.kubeconfig);
    given.wait_for(&Process::sidecar(scratch.path(), "csi-provisioner", &args));
    let given = Listener::at(scratch.path().join("ours"));
    let alone = ALONE.map(str::to_owned);
    let args = [
        &alone[..],
        &[format!("--kubeconfig={}", text(&given.kubeconfig))],
    ]
    .concat();
    given.wait_for(&Process::controllers(scratch.path(), &args));
    let mut without = Controllers::start(scratch.path(), "none", &alone);
    let ended = without
        .wait_ended(PATIENCE)
        .expect("there is no cluster for it");
    assert!(!ended.success(), "{ended}");
    assert!(machine::try_run(text(&plugin::binary()), &["check"]).is_err());
}

use std::collections::BTreeSet;

use hostloop_fake_api::{FakeApi, Fault};
use hostloop_report::cuts::{BegunExploration, CutsLine, EndedExploration};
use rstest::rstest;
use serde_json::{Value, json};

use super::testing::{TEMPLATE, cut, exploration, explored};
use super::*;
use crate::Command;
use crate::node_pods::{Burst, NodeError};
use crate::test_objects::{cluster_of, parsed, writes};

/// A node that takes this many cuts.
struct FakeNode {
    takes: u32,
    /// The outcome of a burst with fewer cuts than requested.
    outcome: &'static str,
    keeps: bool,
    calls: RefCell<Vec<String>>,
}

fn node(takes: u32) -> FakeNode {
    FakeNode {
        takes,
        outcome: "no-room",
        keeps: true,
        calls: RefCell::default(),
    }
}

fn refused() -> NodeError {
    NodeError::Failed {
        pod: "hostloop-a".to_owned(),
        command: "hostloop cuts".to_owned(),
        message: "refused".to_owned(),
    }
}

impl CutNode for FakeNode {
    fn node_name(&self) -> &str {
        "n1"
    }

    async fn take(
        &self,
        volume: &str,
        burst: Burst,
        mut said: impl FnMut(CutsLine),
    ) -> Result<(), NodeError> {
        let call = format!("take {} of {volume}", burst.cuts);
        self.calls.borrow_mut().push(call);
        if self.takes == 0 {
            return Err(refused());
        }
        let id = exploration().as_str().to_owned();
        said(CutsLine::Begun(BegunExploration {
            exploration: id.clone(),
            volume: volume.to_owned(),
            cuts: burst.cuts,
            every_ms: 100,
            expires_ns: 0,
        }));
        let taken = self.takes.min(burst.cuts);
        (1..=taken).for_each(|number| said(CutsLine::Cut(cut(number))));
        let is_whole = taken == burst.cuts;
        said(CutsLine::Ended(EndedExploration {
            exploration: id,
            taken,
            outcome: if is_whole { "complete" } else { self.outcome }.into(),
            why: (!is_whole).then(|| "the pool is full".to_owned()),
        }));
        Ok(())
    }

    async fn keep(&self, snapshot: &str) -> Result<(), NodeError> {
        self.calls.borrow_mut().push(format!("keep {snapshot}"));
        if self.keeps { Ok(()) } else { Err(refused()) }
    }

    async fn drop_all(&self, exploration: &str) -> Result<u32, NodeError> {
        self.calls.borrow_mut().push(format!("drop {exploration}"));
        Ok(0)
    }
}

fn dropped() -> String {
    format!("drop {}", exploration().as_str())
}

/// A server with controllers: claims get volumes, and the Job of a cut ends as `ends` says of its number.
/// Without an end, its pod has this phase.
fn server(ends: fn(u32) -> Option<bool>, pod_runs: bool) -> FakeApi {
    let server = FakeApi::with_snapshots();
    server.on_create(move |object| match object["kind"].as_str() {
        Some("PersistentVolumeClaim") => vec![bind(object)],
        Some("Job") => {
            let number = number_of(object);
            let condition = ends(number).map(|passes| {
                let kind = if passes { "Complete" } else { "Failed" };
                json!([{"type": kind, "status": "True", "reason": "Why", "message": "it failed"}])
            });
            object["status"] = json!({"conditions": condition});
            let begun = ends(number).is_some() || pod_runs;
            vec![pod(object, begun)]
        }
        _ => Vec::new(),
    });
    server
}

/// Binds a claim to the volume that is returned.
fn bind(claim: &mut Value) -> Value {
    let name = claim["metadata"]["name"].as_str().expect("a name");
    let (uid, volume) = (format!("uid-{name}"), format!("pv-{name}"));
    claim["metadata"]["uid"] = json!(uid);
    claim["spec"]["volumeName"] = json!(volume);
    json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": volume, "ownerReferences": [{"uid": uid}]}})
}

fn number_of(job: &Value) -> u32 {
    let variables = &job["spec"]["template"]["spec"]["containers"][0]["env"];
    let mut variables = variables.as_array().expect("variables").iter();
    let cut = variables.find(|variable| variable["name"] == "CUT");
    let cut = cut.expect("CUT")["value"].as_str().expect("a number");
    cut.parse().expect("a number")
}

/// The pod of a Job.
fn pod(job: &mut Value, begun: bool) -> Value {
    let name = job["metadata"]["name"].as_str().expect("a name").to_owned();
    let uid = format!("uid-{name}");
    job["metadata"]["uid"] = json!(uid);
    let state = if begun { "running" } else { "waiting" };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": format!("{name}-x"), "namespace": "demo", "ownerReferences": [{"uid": uid}],
        "labels": {"batch.kubernetes.io/job-name": name},
    }, "status": {"containerStatuses": [{"name": "check", "state": {state: {}}}]}})
}

fn args(words: &str) -> Args {
    let line = format!("explore data --check job.yaml --cuts 10 {words}");
    match parsed(line.trim_end()).unwrap().command {
        Command::Explore(args) => args,
        other => panic!("{other:?}"),
    }
}

async fn explored_by(api: &FakeApi, node: &FakeNode, words: &str) -> Result<ExitCode, Error> {
    let template = CheckTemplate::parse(TEMPLATE).unwrap();
    let (args, cluster) = (args(words), cluster_of(api));
    super::explore(&args, &cluster, &explored(), &template, node).await
}

/// The names of the objects that are left, each with its kind.
fn left(api: &FakeApi) -> Vec<String> {
    let kinds = [
        "jobs",
        "pods",
        "persistentvolumeclaims",
        "persistentvolumes",
        "volumesnapshots",
        "volumesnapshotcontents",
    ];
    let mut left = Vec::new();
    for kind in kinds {
        for object in api.all(kind) {
            let name = object["metadata"]["name"].as_str().expect("a name");
            left.push(format!("{kind} {name}"));
        }
    }
    left
}

/// What is left of a cut that is kept.
fn kept(numbers: &[u32]) -> Vec<String> {
    let mut all = Vec::new();
    for kind in ["volumesnapshots", "volumesnapshotcontents"] {
        let names = numbers
            .iter()
            .map(|number| format!("{kind} explore-data-01234567-{number:04}"));
        all.extend(names);
    }
    all
}

/// The numbers of the cuts that got Jobs, in this order.
fn checked(api: &FakeApi) -> Vec<u32> {
    let made = writes(api).into_iter();
    made.filter_map(|line| {
        let name = line.strip_prefix("POST demo/jobs/explore-data-01234567-")?;
        name.parse().ok()
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn of_cuts_that_pass_nothing_is_left() {
    let (api, node) = (server(|_| Some(true), true), node(10));
    explored_by(&api, &node, "").await.unwrap();
    let all: BTreeSet<u32> = checked(&api).into_iter().collect();
    assert_eq!(all, (1..=10).collect());
    assert_eq!(left(&api), [""; 0]);
    assert_eq!(
        *node.calls.borrow(),
        ["take 10 of vol-1".to_owned(), dropped()]
    );
}

#[tokio::test(start_paused = true)]
async fn cuts_that_fail_are_kept() {
    let (api, node) = (server(|number| Some(number % 5 != 3), true), node(10));
    let error = explored_by(&api, &node, "").await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Failed {
                failed: 2,
                checked: 10
            }
        ),
        "{error}"
    );
    assert_eq!(left(&api), kept(&[3, 8]));
    for snapshot in api.all("volumesnapshots") {
        assert_eq!(snapshot["metadata"]["labels"][KEPT], "true");
    }
    let mut calls = node.calls.take();
    calls.sort();
    let expected = [
        dropped(),
        "keep snap-3".to_owned(),
        "keep snap-8".to_owned(),
    ];
    assert_eq!(calls[..3], expected);
    // A clean-up leaves them, too.
    let cluster = cluster_of(&api);
    let cleaned = clean_up::clean_up(&cluster, Duration::from_secs(9)).await;
    assert_eq!(cleaned.unwrap().kept.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_seed_draws_the_order_and_the_first_failure_may_be_the_last_check() {
    let (api, node) = (server(|number| Some(number != 7), true), node(10));
    let error = explored_by(&api, &node, "--seed 5 --parallel 1 --fail-fast").await;
    assert!(
        matches!(error, Err(Error::Failed { failed: 1, .. })),
        "{error:?}"
    );
    let drawn = order::order(10, 5)
        .into_iter()
        .map(|index| index as u32 + 1);
    let mut expected: Vec<u32> = drawn.take_while(|number| *number != 7).collect();
    expected.push(7);
    // The next one may have begun meanwhile.
    let checked = checked(&api);
    assert_eq!(checked[..expected.len()], expected);
    assert!(checked.len() <= expected.len() + 1, "{checked:?}");
    assert_eq!(left(&api), kept(&[7]));
}

/// It is a failure that one can look at: a database that does not start, for instance.
#[tokio::test(start_paused = true)]
async fn a_check_that_does_not_end_has_failed() {
    let (api, node) = (
        server(|number| (number != 2).then_some(true), true),
        node(10),
    );
    let error = explored_by(&api, &node, "--timeout 20s").await.unwrap_err();
    assert!(matches!(error, Error::Failed { failed: 1, .. }), "{error}");
    assert_eq!(left(&api), kept(&[2]));
}

#[tokio::test(start_paused = true)]
async fn a_check_that_does_not_begin_ends_the_exploration() {
    let (api, node) = (
        server(|number| (number != 2).then_some(true), false),
        node(10),
    );
    let error = explored_by(&api, &node, "--timeout 20s").await.unwrap_err();
    assert!(matches!(error, Error::Unknown(_)), "{error}");
    assert_eq!(left(&api), kept(&[2]));
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_ends_early_is_checked_and_named() {
    let (api, node) = (server(|_| Some(true), true), node(4));
    let error = explored_by(&api, &node, "").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "4 of 10 cuts were taken: no-room: the pool is full"
    );
    assert_eq!(checked(&api).len(), 4);
    assert_eq!(left(&api), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_takes_no_cut_ends_it() {
    let (api, node) = (server(|_| Some(true), true), node(0));
    let error = explored_by(&api, &node, "").await.unwrap_err().to_string();
    assert!(
        error.starts_with("no cut was taken: `hostloop cuts` failed"),
        "{error}"
    );
    assert_eq!(left(&api), [""; 0]);
}

/// What would fail each check fails before the first cut.
#[rstest]
#[case::job(422)]
#[case::right(403)]
#[tokio::test(start_paused = true)]
async fn a_job_that_is_refused_costs_no_cut(#[case] code: u16) {
    let (api, node) = (server(|_| Some(true), true), node(10));
    api.fault(&["POST"], "jobs", None, Fault::Refuse(code));
    assert!(explored_by(&api, &node, "").await.is_err());
    assert_eq!(*node.calls.borrow(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn without_the_snapshot_api_nothing_begins() {
    let node = node(10);
    let error = explored_by(&FakeApi::default(), &node, "")
        .await
        .unwrap_err();
    let error = error.to_string();
    assert!(error.contains("does not serve volumesnapshots"), "{error}");
    assert_eq!(*node.calls.borrow(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn after_an_error_the_rest_is_deleted() {
    let api = server(|_| Some(false), true);
    let node = FakeNode {
        keeps: false,
        ..node(10)
    };
    let error = explored_by(&api, &node, "").await.unwrap_err().to_string();
    assert!(error.contains("is not kept: "), "{error}");
    assert_eq!(left(&api), [""; 0]);
    assert_eq!(node.calls.borrow().last(), Some(&dropped()));
}

fn steps<'s>(
    args: &'s Args,
    cluster: &'s Cluster,
    claim: &'s ExploredClaim,
    template: &'s CheckTemplate,
    node: &'s FakeNode,
) -> Steps<'s, FakeNode> {
    Steps {
        args,
        cluster,
        claim,
        template,
        node,
        seed: 1,
        found: RefCell::default(),
        progress: RefCell::new(ProgressLine::new()),
    }
}

/// Ctrl-C drops the steps wherever they are.
#[tokio::test(start_paused = true)]
async fn steps_that_are_given_up_leave_nothing() {
    let (api, node) = (server(|_| None, true), node(10));
    let template = CheckTemplate::parse(TEMPLATE).unwrap();
    let (args, cluster, claim) = (args(""), cluster_of(&api), explored());
    let steps = steps(&args, &cluster, &claim, &template, &node);
    let given_up = tokio::time::timeout(Duration::from_secs(3), steps.run()).await;
    assert!(given_up.is_err(), "{given_up:?}");
    assert!(!left(&api).is_empty());
    steps.clean_up().await.unwrap();
    assert_eq!(left(&api), [""; 0]);
    assert_eq!(node.calls.borrow().last(), Some(&dropped()));
}

/// Only the report says what is kept, and the check of this one was given up.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_no_report_names_goes() {
    let (api, node) = (server(|_| Some(true), true), node(10));
    put_kept(&api);
    let template = CheckTemplate::parse(TEMPLATE).unwrap();
    let (args, cluster, claim) = (args(""), cluster_of(&api), explored());
    let steps = steps(&args, &cluster, &claim, &template, &node);
    {
        let mut found = steps.found.borrow_mut();
        found.exploration = Some(exploration());
        found.has_objects = true;
    }
    steps.clean_up().await.unwrap();
    assert_eq!(left(&api), [""; 0]);
}

/// A node may name any exploration. What another one has kept stays.
#[tokio::test(start_paused = true)]
async fn an_exploration_of_others_is_not_taken_over() {
    let (api, node) = (server(|_| Some(true), true), node(10));
    put_kept(&api);
    let before = left(&api);
    let error = explored_by(&api, &node, "").await.unwrap_err();
    assert!(matches!(error, Error::OtherExploration(_)), "{error}");
    assert_eq!(left(&api), before);
    assert_eq!(checked(&api), [0; 0]);
}

/// A kept cut of the exploration that the node names.
fn put_kept(api: &FakeApi) {
    let metadata = |namespace: Option<&str>| {
        json!({"name": "explore-data-01234567-0099", "namespace": namespace, "labels": {
            "hostloop.csi.dev/exploration": exploration().as_str(), KEPT: "true",
        }})
    };
    api.put(
        json!({"kind": "VolumeSnapshot", "metadata": metadata(Some("demo")),
        "spec": {"source": {}}}),
    );
    api.put(
        json!({"kind": "VolumeSnapshotContent", "metadata": metadata(None), "spec": {
            "driver": "hostloop.csi.dev", "deletionPolicy": "Delete", "source": {},
            "volumeSnapshotRef": {"namespace": "demo"},
        }}),
    );
}

#[tokio::test(start_paused = true)]
async fn the_log_of_a_check_is_in_the_report() {
    let (api, node) = (server(|_| Some(false), true), node(1));
    let pod = "/api/v1/namespaces/demo/pods/explore-data-01234567-0001-x/log";
    api.answer(pod, 200, "one\nacknowledged 120, found 87\n");
    let cluster = cluster_of(&api);
    let (claim, id) = (explored(), exploration());
    let checker = cut_check::CutChecker {
        cluster: &cluster,
        node: &node,
        claim: &claim,
        template: &CheckTemplate::parse(TEMPLATE).unwrap(),
        exploration: &id,
        timeout: Duration::from_secs(60),
    };
    let result = checker.check(&cut(1)).await.unwrap();
    let cut_check::CutResult::Failed(reason) = result else {
        panic!("{result:?}");
    };
    assert_eq!(reason.why, "Why: it failed");
    assert_eq!(reason.log, ["one", "acknowledged 120, found 87"]);
}

#[test]
fn lines_of_a_clean_up() {
    assert_eq!(cleaned_up(4, 1), "4 objects and 1 cut deleted");
    assert_eq!(
        kept_note(2, "demo"),
        "2 snapshots kept. To delete: kubectl -n demo delete volumesnapshots -l \
         hostloop.csi.dev/kept-cut"
    );
}

#[rstest]
#[case::fast("10ms", true)]
#[case::slow("1m", true)]
#[case::faster("9ms", false)]
#[case::slower("61s", false)]
#[case::unit("100", false)]
fn times_between_cuts(#[case] word: &str, #[case] is_taken: bool) {
    assert_eq!(interval(word).is_ok(), is_taken);
}

/// An exploration needs a claim and a check, and a clean-up neither.
#[rstest]
#[case::no_check("explore data")]
#[case::no_claim("explore --check job.yaml")]
#[case::both("explore data --clean-up")]
#[case::many("explore data --check job.yaml --cuts 1001")]
#[case::at_once("explore data --check job.yaml --parallel 0")]
fn refused_lines(#[case] line: &str) {
    assert!(parsed(line).is_err());
    assert!(parsed("explore --clean-up").is_ok());
}

#[test]
fn a_file_that_can_not_be_read_is_named() {
    let error = read_template(Path::new("/no/such/job.yaml")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("--check: /no/such/job.yaml: ")
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.yaml");
    std::fs::write(&file, "kind: Pod\n").unwrap();
    let error = read_template(&file).unwrap_err().to_string();
    assert!(error.contains("the check is a Job of batch/v1"), "{error}");
}

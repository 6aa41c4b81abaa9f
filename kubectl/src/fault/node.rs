//! `fault node`: lets the pools of a node fail, ends that, and shows it.
//!
//! The driver in the node's pod is asked by a command there, so this needs the right pods/exec in
//! hostloop's namespace, which administrators have.

use std::io;
use std::process::ExitCode;

use anstyle::Style;
use hostloop_api_objects::pool_fault::{PoolFault, PoolFaultError};
use hostloop_report::node_faults::{NodeFaults, PoolFaultState, PoolWithFaults};
use hostloop_terminal::color::{BAD, WARNING};
use hostloop_terminal::columns::or_dash;
use hostloop_terminal::page::{Cell, Page};
use hostloop_terminal::table::{prose, words};
use hostloop_terminal::terminal;
use serde::Serialize;

use super::set::is_duration;
use crate::api::ApiError;
use crate::cluster::Cluster;
use crate::node_pods::{NodePod, ask, node_pods};
use crate::output::{self, OutputArgs, TextForm};

const EXAMPLES: &str = "\
Examples:
  The pool default of a node has no room for five minutes:
    kubectl hostloop fault node worker-1 set default full --for 5m

  All faults of the node's pools end:
    kubectl hostloop fault node worker-1 clear

Faults: full, missing, hanging. docs/faults.md has what pods see of each. The driver needs \
--enable-faults. Without --for, a fault lasts for ten minutes, and hanging for 30 seconds. It also \
ends with the driver's process. A pool that has another fault gets this one instead.";

/// Arguments of `fault node`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The node
    #[arg(value_name = "NODE")]
    node: String,

    #[command(subcommand)]
    command: NodeFaultCommand,
}

/// The subcommands of `fault node`.
#[derive(Clone, Debug, clap::Subcommand)]
enum NodeFaultCommand {
    /// Let a pool of the node fail
    Set(SetArgs),
    /// End the fault of a pool, or of all pools of the node
    Clear(ClearArgs),
    /// Show the faults of the node's pools
    List(OutputArgs),
}

/// Arguments of `fault node set`.
#[derive(Clone, Debug, clap::Args)]
struct SetArgs {
    /// The pool
    #[arg(value_name = "POOL")]
    pool: String,

    /// The fault: full, missing or hanging
    #[arg(value_name = "FAULT")]
    fault: String,

    /// How long the fault lasts, such as 30s or 5m [default: 10m; of hanging 30s]
    #[arg(long = "for", value_name = "DURATION", value_parser = is_duration)]
    lasts: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `fault node clear`.
#[derive(Clone, Debug, clap::Args)]
struct ClearArgs {
    /// The pool [default: all of the node]
    #[arg(value_name = "POOL")]
    pool: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Why `fault node` failed.
#[derive(Debug, thiserror::Error)]
pub enum NodeFaultError {
    /// The API server can't be asked.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The driver would refuse the fault.
    #[error("{fault}: {why}")]
    Fault {
        /// As the person has typed it.
        fault: String,
        #[source]
        why: PoolFaultError,
    },
    #[error(
        "node {node} has no pod of hostloop in namespace {namespace}; there are pods on {others}"
    )]
    NoPod {
        node: String,
        namespace: String,
        /// The nodes with a pod.
        others: String,
    },
    /// The node's driver was not asked, or does not answer.
    #[error("{0}")]
    Node(String),
    #[error("pool {0} does not have the fault; the column MESSAGE says why")]
    NotInForce(String),
    #[error("pools with a fault that goes on: {0}; the column MESSAGE says why")]
    NotEnded(String),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, NodeFaultError> {
    let words = args.command.words()?;
    let pod = pod_on(cluster, &args.node).await?;
    let mut command = pod.command(&["pool-fault"]);
    command.extend(words);
    let said: NodeFaults = ask(cluster, &pod, &command)
        .await
        .map_err(|error| NodeFaultError::Node(error.to_string()))?;
    let rows: Vec<PoolFaultRow> = said
        .pools
        .iter()
        .filter(|pool| args.command.is_about(&pool.pool))
        .map(|pool| PoolFaultRow::new(&args.node, pool))
        .collect();
    let code = print(&rows, args.command.output())?;
    match args.command.failure(&rows) {
        Some(failure) => Err(failure),
        None => Ok(code),
    }
}

/// The pod of hostloop on a node: one that runs, if there are several.
async fn pod_on(cluster: &Cluster, node: &str) -> Result<NodePod, NodeFaultError> {
    let pods = node_pods(cluster).await?;
    let (mut here, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| pod.node == node);
    here.sort_by_key(|pod| pod.not_running.is_some());
    here.into_iter().next().ok_or_else(|| {
        let others = others.iter().map(|pod| &pod.node);
        NodeFaultError::NoPod {
            node: node.to_owned(),
            namespace: cluster.system_namespace.clone(),
            others: or_dash(Some(output::names(others))),
        }
    })
}

impl NodeFaultCommand {
    /// The words of the command in the pod.
    fn words(&self) -> Result<Vec<String>, NodeFaultError> {
        Ok(match self {
            NodeFaultCommand::Set(args) => {
                let fault = args.fault()?.to_string();
                vec!["set".to_owned(), args.pool.clone(), fault]
            }
            NodeFaultCommand::Clear(args) => {
                let pool = args.pool.clone().into_iter();
                std::iter::once("clear".to_owned()).chain(pool).collect()
            }
            NodeFaultCommand::List(_) => vec!["list".to_owned()],
        })
    }

    /// True if the command is about this pool.
    fn is_about(&self, pool: &str) -> bool {
        match self {
            NodeFaultCommand::Set(args) => args.pool == pool,
            NodeFaultCommand::Clear(args) => args.pool.as_ref().is_none_or(|named| named == pool),
            NodeFaultCommand::List(_) => true,
        }
    }

    fn output(&self) -> &OutputArgs {
        match self {
            NodeFaultCommand::Set(args) => &args.output,
            NodeFaultCommand::Clear(args) => &args.output,
            NodeFaultCommand::List(output) => output,
        }
    }

    /// Why the command has not done what it is for.
    fn failure(&self, rows: &[PoolFaultRow]) -> Option<NodeFaultError> {
        match self {
            NodeFaultCommand::Set(args)
                if pools_in(rows, PoolFaultState::Active).next().is_none() =>
            {
                Some(NodeFaultError::NotInForce(args.pool.clone()))
            }
            NodeFaultCommand::Clear(_) => {
                let left = output::names(pools_in(rows, PoolFaultState::Failed));
                (!left.is_empty()).then_some(NodeFaultError::NotEnded(left))
            }
            NodeFaultCommand::Set(_) | NodeFaultCommand::List(_) => None,
        }
    }
}

impl SetArgs {
    /// The fault as the driver reads it.
    fn fault(&self) -> Result<PoolFault, NodeFaultError> {
        let mut text = self.fault.clone();
        if let Some(lasts) = &self.lasts {
            text.push_str(&format!(",for={lasts}"));
        }
        PoolFault::parse(&text).map_err(|why| NodeFaultError::Fault { fault: text, why })
    }
}

/// The data of the output. Names and meanings are stable; fields may be added.
#[derive(Serialize)]
struct PoolFaultRows<'r> {
    faults: &'r [PoolFaultRow],
}

/// A pool and its fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PoolFaultRow {
    node: String,
    pool: String,
    /// The fault that was asked for last; null without one.
    fault: Option<String>,
    state: Option<PoolFaultState>,
    message: String,
}

impl PoolFaultRow {
    fn new(node: &str, pool: &PoolWithFaults) -> PoolFaultRow {
        let now = pool.now.as_ref();
        PoolFaultRow {
            node: node.to_owned(),
            pool: pool.pool.clone(),
            fault: now.map(|now| now.fault.clone()),
            state: now.map(|now| now.state),
            message: now.map(|now| now.message.clone()).unwrap_or_default(),
        }
    }
}

/// The pools with a fault in this state.
fn pools_in(rows: &[PoolFaultRow], state: PoolFaultState) -> impl Iterator<Item = &String> {
    rows.iter()
        .filter(move |row| row.state == Some(state))
        .map(|row| &row.pool)
}

/// Prints the rows in the form that the person wants.
fn print(rows: &[PoolFaultRow], args: &OutputArgs) -> io::Result<ExitCode> {
    let faults = PoolFaultRows { faults: rows };
    let lines = match args.document(&faults, || names(rows))? {
        Some(lines) => lines,
        None => text(rows, args.text_form()),
    };
    output::end(terminal::print(&lines))
}

/// The pools for `-o name`.
fn names(rows: &[PoolFaultRow]) -> Vec<String> {
    rows.iter()
        .map(|row| format!("pool/{}", row.pool))
        .collect()
}

fn text(rows: &[PoolFaultRow], form: TextForm) -> Vec<String> {
    // A sentence is what the person waits for, so it is never cut.
    let mut page = Page::new(None, 0);
    page.no_headers = form.no_headers;
    let cells: [Cell<PoolFaultRow>; 5] = [
        (words("NODE"), |row, _| row.node.clone()),
        (words("POOL"), |row, _| row.pool.clone()),
        (words("FAULT"), |row, _| or_dash(row.fault.clone())),
        (words("STATE"), |row, _| {
            or_dash(row.state.map(|state| state.word().to_owned()))
        }),
        (prose("MESSAGE", None), |row, _| row.message.clone()),
    ];
    page.painted_table("Faults", &cells, rows, style);
    page.lines
}

fn style(row: &PoolFaultRow) -> Option<Style> {
    match row.state? {
        PoolFaultState::Active => Some(WARNING),
        PoolFaultState::Refused | PoolFaultState::Failed => Some(BAD),
        PoolFaultState::Over => None,
    }
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::FakeApi;
    use hostloop_report::node_faults::PoolFaultNow;
    use rstest::rstest;

    use super::*;
    use crate::Command;
    use crate::fault::{self, FaultCommand};
    use crate::test_objects::{cluster_of, node_pod, parsed, plain};

    fn args(line: &str) -> Args {
        match parsed(&format!("fault node {line}")).unwrap().command {
            Command::Fault(fault::Args {
                command: FaultCommand::Node(args),
            }) => args,
            other => panic!("{other:?}"),
        }
    }

    #[rstest]
    #[case::set("n1 set default full", "set default full,for=600s")]
    #[case::time("n1 set default hanging --for 1m", "set default hanging,for=60s")]
    #[case::whole("n1 set fast missing,for=5m", "set fast missing,for=300s")]
    #[case::clear("n1 clear", "clear")]
    #[case::clear_one("n1 clear fast", "clear fast")]
    #[case::list("n1 list -o json", "list")]
    fn commands_in_the_pod(#[case] line: &str, #[case] expected: &str) {
        let args = args(line);
        assert_eq!(args.node, "n1");
        assert_eq!(args.command.words().unwrap().join(" "), expected);
    }

    #[rstest]
    #[case::unknown("n1 set default gone", "gone: unknown fault \"gone\"; there are full")]
    #[case::long(
        "n1 set default hanging --for 6m",
        "hanging,for=6m: for: \"6m\" is longer than 300 s"
    )]
    fn refused(#[case] line: &str, #[case] expected: &str) {
        let error = args(line).command.words().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    fn pool(name: &str, state: Option<PoolFaultState>) -> PoolWithFaults {
        PoolWithFaults {
            pool: name.to_owned(),
            faults: Vec::new(),
            now: state.map(|state| PoolFaultNow {
                fault: "full,for=300s".to_owned(),
                requested_ns: 1,
                state,
                message: "m".to_owned(),
            }),
        }
    }

    #[rstest]
    #[case::in_force("n1 set default full", Some(PoolFaultState::Active), None)]
    #[case::refused(
        "n1 set default full",
        Some(PoolFaultState::Refused),
        Some("pool default does not have the fault")
    )]
    #[case::ended("n1 clear", None, None)]
    #[case::goes_on(
        "n1 clear",
        Some(PoolFaultState::Failed),
        Some("pools with a fault that goes on: default")
    )]
    #[case::list("n1 list", Some(PoolFaultState::Failed), None)]
    fn failures(
        #[case] line: &str,
        #[case] state: Option<PoolFaultState>,
        #[case] expected: Option<&str>,
    ) {
        let row = PoolFaultRow::new("n1", &pool("default", state));
        let failure = args(line).command.failure(&[row]);
        let said = failure.map(|failure| failure.to_string());
        assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
        let said = said.unwrap_or_default();
        assert!(said.starts_with(expected.unwrap_or_default()), "{said}");
    }

    #[test]
    fn a_row_for_each_pool() {
        let rows = [
            PoolFaultRow::new("n1", &pool("default", Some(PoolFaultState::Active))),
            PoolFaultRow::new("n1", &pool("fast", None)),
        ];
        assert_eq!(
            plain(&text(&rows, TextForm::default())),
            [
                "Faults",
                "  NODE  POOL     FAULT          STATE   MESSAGE",
                "  n1    default  full,for=300s  active  m",
                "  n1    fast     -              -",
            ]
        );
        let json = serde_json::to_value(PoolFaultRows { faults: &rows[..1] }).unwrap();
        let expected = serde_json::json!({"faults": [{"node": "n1", "pool": "default",
            "fault": "full,for=300s", "state": "active", "message": "m"}]});
        assert_eq!(json, expected);
    }

    #[tokio::test]
    async fn a_node_without_a_pod_is_named() {
        let api = FakeApi::default();
        let mut pod = node_pod("hostloop-a", "n2");
        pod["kind"] = serde_json::json!("Pod");
        pod["metadata"]["namespace"] = serde_json::json!("hostloop");
        api.put(pod);
        let error = run(&args("n1 list"), &cluster_of(&api)).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "node n1 has no pod of hostloop in namespace hostloop; there are pods on n2"
        );
    }
}

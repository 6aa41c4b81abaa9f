//! The CSI driver in memory as a program, for controllers, sidecars and csi-sanity that are to be
//! tested with a driver other than hostloop.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::node_service_capability::rpc::Type as NodeRpc;
use hostloop_test::memory::{Capabilities, MemoryDriver, Options, Step};
use tonic::Code;

/// Serves the Container Storage Interface from memory, for tests of its callers
///
/// It serves until its standard input ends or it is killed. Its volumes end with it.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The socket
    #[arg(long, value_name = "unix:///PATH")]
    endpoint: String,
    /// The name of the driver
    #[arg(long, default_value = "memory.csi.dev")]
    drivername: String,
    /// The ID of its node
    #[arg(long, default_value = "memory-node")]
    nodeid: String,
    /// The ID of a further node that volumes can be published to
    #[arg(long, value_name = "ID")]
    other_node: Vec<String>,
    /// Topology segments with storage, those of its own node first; without any, no topology
    #[arg(long, value_name = "KEY=VALUE[,KEY=VALUE]")]
    topology: Vec<String>,
    /// Missing capabilities of the Controller service, such as LIST_VOLUMES
    #[arg(long, value_name = "CAPABILITY", value_delimiter = ',', value_parser = controller_rpc)]
    without: Vec<ControllerRpc>,
    /// Missing capabilities of the Node service
    #[arg(long, value_name = "CAPABILITY", value_delimiter = ',', value_parser = node_rpc)]
    node_without: Vec<NodeRpc>,
    /// Bytes of capacity for each topology
    #[arg(long, default_value_t = 1 << 40)]
    capacity: i64,
    /// The largest volume in bytes; 0 means no limit
    #[arg(long, default_value_t = 0)]
    max_volume_size: i64,
    /// The number of volumes that a node can have; 0 means no limit
    #[arg(long, default_value_t = 0)]
    attach_limit: i64,
    /// The number of answers that say that a new snapshot is not ready
    #[arg(long, default_value_t = 0)]
    ready_after_polls: u32,
    /// NodeExpandVolume must follow an expansion
    #[arg(long)]
    node_expansion_required: bool,
    /// The next calls of a method: `pass`, the number of a gRPC code (no effect), `done:CODE` (the
    /// effect and this code), a delay (`500ms`), or `drop` (the effect, and no answer)
    #[arg(long, value_name = "METHOD=STEP[,STEP]", value_parser = script)]
    script: Vec<(String, Vec<Step>)>,
}

fn controller_rpc(name: &str) -> Result<ControllerRpc, String> {
    ControllerRpc::from_str_name(name).ok_or_else(|| format!("{name} is not a capability"))
}

fn node_rpc(name: &str) -> Result<NodeRpc, String> {
    NodeRpc::from_str_name(name).ok_or_else(|| format!("{name} is not a capability"))
}

fn script(text: &str) -> Result<(String, Vec<Step>), String> {
    let (method, steps) = text.split_once('=').ok_or("it needs a =")?;
    let steps: Result<Vec<_>, _> = steps.split(',').map(step).collect();
    Ok((method.to_owned(), steps?))
}

fn step(text: &str) -> Result<Step, String> {
    let code = |text: &str| {
        let number: i32 = text.parse().map_err(|_| format!("{text} is not a step"))?;
        match Code::from_i32(number) {
            Code::Ok => Err(format!("{text} is not an error")),
            code => Ok(code),
        }
    };
    match (text, text.strip_prefix("done:"), text.strip_suffix("ms")) {
        ("pass", ..) => Ok(Step::Pass),
        ("drop", ..) => Ok(Step::DropAnswer),
        (_, Some(but), _) => Ok(Step::DoneBut(code(but)?)),
        (_, _, Some(ms)) => match ms.parse() {
            Ok(ms) => Ok(Step::Delay(Duration::from_millis(ms))),
            Err(e) => Err(format!("{text}: {e}")),
        },
        _ => Ok(Step::Fail(code(text)?)),
    }
}

fn segments(text: &str) -> Result<BTreeMap<String, String>, String> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    };
    let pairs: Option<_> = text.split(',').map(pair).collect();
    pairs.ok_or_else(|| format!("--topology {text}: write KEY=VALUE,KEY=VALUE"))
}

fn options(args: &Args) -> Result<Options, String> {
    let places: Result<Vec<_>, _> = args.topology.iter().map(|t| segments(t)).collect();
    let mut capabilities = Capabilities::all();
    if args.topology.is_empty() {
        capabilities = capabilities.without_topology();
    }
    capabilities
        .controller
        .retain(|c| !args.without.contains(c));
    capabilities.node.retain(|c| !args.node_without.contains(c));
    Ok(Options {
        name: args.drivername.clone(),
        node_id: args.nodeid.clone(),
        other_nodes: args.other_node.iter().cloned().collect(),
        capabilities,
        topology: places?,
        capacity: args.capacity,
        max_volume_size: args.max_volume_size,
        attach_limit: args.attach_limit,
        ready_after_polls: args.ready_after_polls,
        node_expansion_required: args.node_expansion_required,
        ..Options::default()
    })
}

fn main() -> ExitCode {
    let args = Args::parse();
    let options = match options(&args) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("memory-driver: {why}");
            return ExitCode::from(2);
        }
    };
    let Some(socket) = args.endpoint.strip_prefix("unix://") else {
        eprintln!(
            "memory-driver: --endpoint {}: it must begin with unix://",
            args.endpoint
        );
        return ExitCode::from(2);
    };
    let driver = MemoryDriver::start(socket, options);
    for (method, steps) in args.script {
        driver.script(&method, steps);
    }
    eprintln!("memory-driver: serving at {}", driver.endpoint());
    // The starter holds the other end, so the driver never outlives it.
    let read = std::io::stdin().read_to_end(&mut Vec::new());
    eprintln!("memory-driver: {:?}", driver.counts());
    eprintln!("memory-driver: left: {:?}", driver.left());
    ExitCode::from(u8::from(read.is_err()))
}

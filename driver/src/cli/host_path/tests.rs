use std::collections::BTreeSet;

use clap::{CommandFactory, Parser};
use rstest::rstest;

use super::*;
use crate::cli::{Cli, Command, ServeArgs};

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn read(line: &str, variables: &[&str]) -> Option<HostPathLine> {
    HostPathLine::read(&words(line), |name| variables.contains(&name))
}

/// The arguments of `hostloop serve`, or clap's error.
fn served(line: &str) -> Result<ServeArgs, String> {
    let read = read(line, &[]).expect("it is a line of the host-path driver");
    match Cli::try_parse_from(&read.line)
        .map_err(|error| error.to_string())?
        .command
    {
        Command::Serve(args) => Ok(*args),
        other => panic!("{other:?}"),
    }
}

const DEFAULT: &str = "--drivername=hostpath.csi.k8s.io --enable-attach=false \
                       --topology-key=topology.hostpath.csi/node --ignore-unknown-parameters=true \
                       --pool=default=/csi-data-dir";
const SET: [&str; 5] = [
    "HOSTLOOP_DRIVERNAME",
    "HOSTLOOP_ENABLE_ATTACH",
    "HOSTLOOP_TOPOLOGY_KEY",
    "HOSTLOOP_IGNORE_UNKNOWN_PARAMETERS",
    "HOSTLOOP_POOL",
];

#[rstest]
#[case::defaults("--nodeid=n", &[], &format!("--nodeid=n {DEFAULT}"))]
#[case::environment("--nodeid=n", &SET, "--nodeid=n")]
#[case::next_word("--nodeid n --v 5", &SET, "--nodeid=n --v=5")]
#[case::one_dash("-v=5 -nodeid n", &SET, "--v=5 --nodeid=n")]
#[case::last_counts("--nodeid=a --nodeid=b", &SET, "--nodeid=b")]
#[case::switch("--enable-attach --nodeid=n", &SET, "--enable-attach=true --nodeid=n")]
#[case::switch_off("--enable-topology=false", &SET, "--enable-topology=false")]
#[case::given_default("--nodeid=n --enable-attach=true", &SET[2..],
    "--nodeid=n --enable-attach=true --drivername=hostpath.csi.k8s.io")]
#[case::directory("--statedir=/data", &SET[..4], "--pool=default=/data")]
#[case::directory_of_a_pool("--statedir=/data", &SET, "")]
#[case::kinds("--capacity=slow=5Gi --capacity fast=1Gi", &SET[..4],
    "--pool=slow=/csi-data-dir/slow --pool=fast=/csi-data-dir/fast --capacity=slow=5Gi \
     --capacity=fast=1Gi")]
#[case::kind_without_a_size("--capacity=slow", &SET[..4], "--capacity=slow")]
#[case::own_flag("--nodeid=n --pool=default=/p,image=1Gi", &SET[..4],
    "--nodeid=n --pool=default=/p,image=1Gi")]
#[case::ignored("--nodeid=n --ephemeral --logtostderr=true --stderrthreshold 2", &SET, "--nodeid=n")]
#[case::no_value("--nodeid", &SET, "--nodeid=")]
fn lines(#[case] line: &str, #[case] variables: &[&str], #[case] expected: &str) {
    let read = read(&format!("hostloop {line}"), variables).expect("it is host-path's");
    let expected = words(&format!("hostloop serve {expected}"));
    assert_eq!(read.line, expected);
}

#[rstest]
#[case::none("hostloop")]
#[case::subcommand("hostloop serve --nodeid=n")]
#[case::help("hostloop --help")]
#[case::version("hostloop --version")]
#[case::short("hostloop -V")]
#[case::client("hostloop --context kind-kind status")]
#[case::unknown("hostloop --proxy-endpoint=unix:///s --nodeid=n")]
fn other_lines_stay_as_they_are(#[case] line: &str) {
    assert_eq!(read(line, &[]), None);
}

#[rstest]
#[case::none("--nodeid=n", "for `serve`")]
#[case::once(
    "--logtostderr --ephemeral=false --logtostderr",
    "for `serve`; ignored: --logtostderr, --ephemeral"
)]
fn what_is_ignored_is_said_once(#[case] line: &str, #[case] end: &str) {
    let read = read(&format!("hostloop {line}"), &[]).expect("it is host-path's");
    assert!(read.remark().ends_with(end), "{}", read.remark());
}

/// The line of upstream's manifests.
#[test]
fn the_line_of_the_manifests_is_taken() {
    let args = served(
        "hostloop --drivername=hostpath.csi.k8s.io --v=5 --endpoint=unix:///csi/csi.sock --nodeid=n1",
    )
    .expect("it is taken");
    assert_eq!(args.pools.driver_name, "hostpath.csi.k8s.io");
    assert_eq!(args.volumes.topology_key, "topology.hostpath.csi/node");
    assert_eq!(args.node_id.as_deref(), Some("n1"));
    assert_eq!(args.watch.log.verbosity, Some(5));
    assert!(args.switches.ignore_unknown_parameters);
    assert!(!args.switches.enable_attach);
    let specs = args.pools.specs().expect("they fit together");
    assert_eq!(specs.len(), 1);
    assert_eq!(specs[0].path, std::path::Path::new("/csi-data-dir"));
}

#[rstest]
#[case::flag(
    "--nodeid=n --endpoint=unix:///s --proxy-endpoint=unix:///p",
    "--proxy-endpoint"
)]
#[case::word("--nodeid=n --endpoint=unix:///s run", "run")]
#[case::socket("--nodeid=n --endpoint=tcp://127.0.0.1:10000", "Unix socket")]
#[case::capacity("--endpoint=unix:///s --capacity=a=1Gi --capacity=b", "NAME=SIZE")]
fn what_serve_can_not_do_is_refused(#[case] line: &str, #[case] reason: &str) {
    let error = served(&format!("hostloop {line}")).expect_err("it is refused");
    assert!(error.contains(reason), "{error}");
}

#[test]
fn the_table_agrees_with_serve() {
    let mut all = Cli::command();
    all.build();
    let serve = all.find_subcommand("serve").expect("it is a subcommand");
    let served: BTreeSet<&str> = serve
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .collect();
    for (name, meaning) in FLAGS {
        let ours = !matches!(
            meaning,
            HostPathFlag::IgnoredValue | HostPathFlag::IgnoredSwitch
        );
        assert_eq!(served.contains(name), ours, "--{name}");
    }
    for (name, _) in DEFAULTS {
        assert!(served.contains(name), "--{name}");
    }
    let names: BTreeSet<&str> = FLAGS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), FLAGS.len());
}

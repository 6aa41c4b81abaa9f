use std::collections::BTreeSet;

use clap::{CommandFactory, Parser};
use rstest::rstest;

use super::*;
use crate::cli::{Cli, Command, ControllersArgs};

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn read(line: &str) -> Result<Option<SidecarLine>, SidecarLineError> {
    SidecarLine::read(&words(line))
}

fn taken(line: &str) -> SidecarLine {
    let read = read(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    read.unwrap_or_else(|| panic!("{line} is not a line of sidecars"))
}

/// The arguments of `hostloop controllers`, or clap's error.
fn controllers(line: &str) -> Result<ControllersArgs, String> {
    match Cli::try_parse_from(&taken(line).line)
        .map_err(|error| error.to_string())?
        .command
    {
        Command::Controllers(args) => Ok(*args),
        other => panic!("{other:?}"),
    }
}

/// The flags of `hostloop controllers`.
fn own_flags() -> BTreeSet<String> {
    let mut all = Cli::command();
    all.build();
    let command = all
        .find_subcommand("controllers")
        .expect("it is a subcommand");
    let flags = command.get_arguments().filter_map(|arg| arg.get_long());
    flags.map(str::to_owned).collect()
}

#[rstest]
#[case::same(
    "--csi-address=/s --leader-election",
    "--csi-address=/s --leader-election"
)]
#[case::one_dash("-csi-address=/s -v=5", "--csi-address=/s --v=5")]
#[case::next_word("-csi-address /s -v 5", "--csi-address /s --v 5")]
#[case::short("-h", "-h")]
#[case::negative_number("-capacity-ownerref-level -1", "--capacity-ownerref-level -1")]
#[case::selection("-controllers -attacher", "--controllers=-attacher")]
#[case::last_selection_counts("--controllers=a --controllers=b", "--controllers=b")]
#[case::unset("--kubeconfig= --http-endpoint= -leader-election-namespace=", "")]
#[case::shared("--attacher-timeout=30s", "--per-controller=attacher-timeout=30s")]
#[case::shared_next_word("-attacher-timeout 30s", "--per-controller=attacher-timeout=30s")]
#[case::shared_switch(
    "--provisioner-extra-create-metadata --v=5",
    "--per-controller=provisioner-extra-create-metadata=true --v=5"
)]
#[case::singular(
    "--attacher-worker-thread=100",
    "--per-controller=attacher-worker-threads=100"
)]
#[case::health_monitor("--health-monitor-timeout=1s", "--per-controller=health-timeout=1s")]
#[case::own("--provisioner-volume-name-prefix=x", "--volume-name-prefix=x")]
#[case::own_next_word("--attacher-max-entries 5", "--max-entries 5")]
#[case::one_for_all(
    "--provisioner-node-deployment --snapshotter-node-deployment=true",
    "--node-deployment=true"
)]
#[case::not_a_prefix(
    "--health-port=1 --snapshot-controller-namespace=n",
    "--health-port=1 --snapshot-controller-namespace=n"
)]
#[case::named(
    "--metrics-address=:80 --logging-format json",
    "--http-endpoint=:80 --log-format=json"
)]
#[case::named_unset("--metrics-address=", "")]
#[case::allowed(
    "--metrics-path=/metrics --master= --mode registration --threads=10",
    ""
)]
#[case::ignored(
    "--feature-gates=Topology=true --logtostderr --vmodule x=1 --automaxprocs",
    ""
)]
#[case::underscores("--skip_headers --log_file=x", "")]
#[case::ignored_prefix(
    "--provisioner-capacity-threads=2 --attacher-max-grpc-log-length -1",
    ""
)]
#[case::capacity(
    "--controllers=attacher,external-provisioner --provisioner-enable-capacity",
    "--controllers=attacher,external-provisioner,capacity --enable-capacity"
)]
#[case::capacity_excluded(
    "--controllers=provisioner,-capacity --enable-capacity",
    "--controllers=provisioner,-capacity --enable-capacity"
)]
#[case::capacity_of_all(
    "--controllers=* --enable-capacity=true",
    "--controllers=* --enable-capacity=true"
)]
fn lines(#[case] line: &str, #[case] expected: &str) {
    let read = taken(&format!("hostloop controllers {line}"));
    let expected = words(&format!("hostloop controllers {expected}"));
    assert_eq!(read.line, expected);
}

#[rstest]
#[case::flags("hostloop --v=5 --csi-address=/csi/csi.sock --controllers=resizer,attacher")]
#[case::one_dash("hostloop -v=5 -controllers resizer,attacher --csi-address=/csi/csi.sock")]
fn a_subcommand_is_not_needed(#[case] line: &str) {
    let args = controllers(line).expect("it is taken");
    assert!(args.controllers.controllers.has(Role::Resizer));
    assert!(!args.controllers.controllers.has(Role::Provisioner));
    let remark = taken(line).remark().expect("there is one");
    assert!(remark.ends_with("for `controllers`"), "{remark}");
}

#[rstest]
#[case::none("hostloop")]
#[case::other("hostloop run --controllers=attacher")]
#[case::help("hostloop --help")]
#[case::host_path("hostloop --v=5 --nodeid=n --endpoint=unix:///s")]
fn other_lines_stay_as_they_are(#[case] line: &str) {
    assert_eq!(read(line), Ok(None));
}

#[rstest]
#[case::nothing("--csi-address=/s", None)]
#[case::once(
    "--feature-gates=A=true -feature-gates=B=true --provisioner-enable-pprof",
    Some("have no effect: --feature-gates, --provisioner-enable-pprof")
)]
fn what_is_ignored_is_said_once(#[case] line: &str, #[case] end: Option<&str>) {
    let remark = taken(&format!("hostloop controllers {line}")).remark();
    match (&remark, end) {
        (Some(remark), Some(end)) => assert!(remark.ends_with(end), "{remark}"),
        _ => assert_eq!(remark.as_deref(), end),
    }
}

#[rstest]
#[case::path(
    "--metrics-path=/m",
    "--metrics-path=/m is not supported: metrics are at"
)]
#[case::master("-master https://10.0.0.1", "set --kubeconfig instead")]
#[case::mode("--mode=kubelet-registration-probe", "probe it instead")]
#[case::threads("--threads=5", "set --snapshot-controller-worker-threads")]
#[case::feature(
    "--feature-gates=Topology=true,CrossNamespaceVolumeDataSource=true",
    "--feature-gates=CrossNamespaceVolumeDataSource=true is not supported"
)]
fn what_no_controller_can_follow_is_refused(#[case] line: &str, #[case] reason: &str) {
    let error = read(&format!("hostloop controllers {line}")).expect_err("it is refused");
    assert!(error.to_string().contains(reason), "{error}");
}

#[rstest]
#[case::unknown("--attacher-unknown=1", "--attacher-unknown")]
#[case::controller("--controllers=volume-data-source-validator", "no controller replaces")]
#[case::value(
    "--attacher-timeout=soon",
    "attacher-timeout: \"soon\" is not a duration"
)]
fn what_controllers_can_not_do_is_refused(#[case] line: &str, #[case] reason: &str) {
    let error = controllers(&format!("hostloop controllers {line}")).expect_err("it is refused");
    assert!(error.contains(reason), "{error}");
}

/// The first example of KEP-4958.
#[test]
fn the_line_of_the_proposal_is_taken() {
    let args = controllers(
        "hostloop --csi-address=unix:/csi/csi.sock \
         --controllers=attacher,provisioner,resizer,snapshotter --feature-gates=Topology=true \
         --leader-election --leader-election-namespace=kube-system \
         --leader-election-labels=a:b,c:d --timeout=30s --attacher-timeout=30s \
         --attacher-worker-thread=100 --provisioner-timeout=30s",
    )
    .expect("it is taken");
    let flags = &args.controllers;
    assert_eq!(args.csi_address, std::path::Path::new("/csi/csi.sock"));
    assert_eq!(flags.per_controller.len(), 3);
    assert_eq!(flags.election.leader_election, Some(true));
    let labels = flags.election.labels();
    assert_eq!(labels.get("c").map(String::as_str), Some("d"));
}

#[test]
fn the_tables_agree_with_controllers() {
    let own = own_flags();
    let known = |name: &str| own.contains(name) || meaning(name).is_some();
    let all: Vec<(&str, SidecarFlag)> = [&FLAGS[..], &LOGGING[..]].concat();
    let names: BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), all.len());
    for (name, meaning) in all {
        assert!(!own.contains(name), "--{name}");
        if let SidecarFlag::Named(name) = meaning {
            assert!(own.contains(name), "--{name}");
        }
    }
    for (prefix, controller, flags) in PREFIXES {
        assert!(Role::named(controller).is_some(), "{controller}");
        for flag in flags {
            assert!(known(flag), "--{flag}");
            let prefixed_flag = format!("{prefix}-{flag}");
            assert!(!own.contains(&prefixed_flag), "--{prefixed_flag}");
            assert_eq!(prefixed(&prefixed_flag), Some(Prefixed::Own(flag)));
        }
    }
    for name in own.iter().filter(|name| *name != CONTROLLERS) {
        assert_eq!(prefixed(name), None, "--{name}");
    }
}

/// The page of upstream's flags says the same of each flag as the table.
#[test]
fn the_page_of_flags_agrees_with_the_table() {
    let page = include_str!("../../../../docs/flags.md");
    for (name, meaning) in FLAGS {
        let cell = match meaning {
            SidecarFlag::Named(_) => "renamed",
            SidecarFlag::Only(..) => "no",
            SidecarFlag::Features | SidecarFlag::IgnoredValue | SidecarFlag::IgnoredSwitch => {
                "ignored"
            }
        };
        let row = format!("| `--{name}` | {cell} |");
        assert!(page.contains(&row), "{row}");
    }
}

const PAGE: &str = include_str!("../../../../docs/controllers.md");
const MANIFEST: &str = include_str!("../../../../deploy/examples/other-driver.yaml");

#[test]
fn the_page_of_controllers_has_each_of_them() {
    let rows: Vec<&str> = PAGE.lines().filter(|line| line.starts_with("| ")).collect();
    for role in Role::ALL {
        let cell = format!("| `{role}` |");
        assert!(rows.iter().any(|row| row.contains(&cell)), "{cell}");
    }
    for (sidecar, role) in SIDECARS {
        let is_named = |row: &&str| {
            row.contains(&format!("`{sidecar}`")) && row.contains(&format!("| `{role}` |"))
        };
        assert!(rows.iter().any(is_named), "{sidecar}");
    }
}

/// The words of each container of hostloop in a manifest, in the order of the file.
fn lines_of(manifest: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in manifest.lines().map(str::trim) {
        match line.strip_prefix("- ") {
            Some("controllers") => {
                lines.push("hostloop controllers".to_owned());
                is_open = true;
            }
            Some(flag) if is_open && flag.starts_with('-') => {
                let open = lines.last_mut().expect("it is open");
                open.push(' ');
                open.push_str(flag);
            }
            _ => is_open = is_open && line.starts_with('#'),
        }
    }
    lines
}

#[test]
fn the_arguments_of_the_manifest_are_taken() {
    let lines = lines_of(MANIFEST);
    let [cluster, node] = &lines[..] else {
        panic!("{lines:?}");
    };
    for line in &lines {
        assert_eq!(taken(line).remark(), None, "{line}");
    }
    let cluster = controllers(cluster).expect("it is taken").controllers;
    for role in [
        Role::Provisioner,
        Role::Attacher,
        Role::Resizer,
        Role::Snapshotter,
        Role::Capacity,
        Role::Health,
        Role::Liveness,
    ] {
        assert!(cluster.controllers.has(role), "{role}");
    }
    assert!(!cluster.controllers.has(Role::Registrar));
    assert_eq!(cluster.election.leader_election, Some(true));
    let node = controllers(node).expect("it is taken").controllers;
    let selected = Role::ALL
        .into_iter()
        .filter(|role| node.controllers.has(*role));
    let selected: Vec<Role> = selected.collect();
    assert_eq!(selected, [Role::Registrar, Role::Liveness]);
    assert!(node.kubelet.kubelet_registration_path.is_some());
}

/// Without a policy, all pods of a cluster can connect to metrics and liveness.
#[test]
fn the_manifest_closes_the_ports_of_its_pods() {
    let objects = MANIFEST.split("\n---\n");
    let policies: Vec<&str> = objects
        .filter(|object| object.lines().any(|line| line == "kind: NetworkPolicy"))
        .collect();
    let [policy] = &policies[..] else {
        panic!("{policies:?}");
    };
    let has = |expected: &str| policy.lines().any(|line| line == expected);
    for line in [
        "  namespace: other-driver",
        "  podSelector: {}",
        "  policyTypes: [Ingress]",
    ] {
        assert!(has(line), "{line}");
    }
    let open = policy
        .lines()
        .filter_map(|line| line.trim().strip_prefix("port: "));
    let open: Vec<&str> = open.collect();
    assert_eq!(open, ["9809"]);
    // The rule names who may connect.
    assert_eq!(policy.matches("- from:").count(), open.len());
}

use clap::Parser;

use super::*;
use crate::cli::{Cli, Command};
use crate::testkit::pairs;

/// Parses a command line with a pool.
fn parse(command: &str, flags: &str) -> Result<Command, String> {
    let line = format!("hostloop {command} --endpoint /s --pool a=/p {flags}");
    let cli = Cli::try_parse_from(line.split_whitespace());
    Ok(cli.map_err(|e| e.to_string())?.command)
}

/// Reads the settings of `hostloop serve`.
fn read(flags: &str) -> Result<ServeSettings, String> {
    match parse("serve", flags).unwrap() {
        Command::Serve(args) => settings(&args, &[]),
        other => panic!("{other:?}"),
    }
}

/// Reads the settings of `hostloop run`.
fn run(flags: &str) -> Result<ServeSettings, String> {
    match parse("run", flags)? {
        Command::Run(args) => settings(&args.serve, &args.topology_from_node_labels),
        other => panic!("{other:?}"),
    }
}

fn settings(args: &ServeArgs, labels: &[String]) -> Result<ServeSettings, String> {
    let read = ServeSettings::read(args, labels, || Ok("host".to_owned()));
    read.map_err(|error| error.to_string())
}

/// Checks the topology of all parts.
#[track_caller]
fn assert_topology(settings: &ServeSettings, expected: &str) {
    let expected = pairs(expected);
    assert_eq!(*settings.topology.segments().unwrap(), expected);
    assert_eq!(*settings.controller.topology.segments().unwrap(), expected);
    assert_eq!(*settings.node.topology.settled().unwrap(), expected);
}

#[test]
fn fault_rules_need_a_permission() {
    let error = read("--fault-rules /etc/rules.yaml").unwrap_err();
    assert!(error.contains("--enable-faults"), "{error}");
    let settings = read("--fault-rules /etc/rules.yaml --enable-faults").unwrap();
    assert_eq!(settings.fault_rules, Some("/etc/rules.yaml".into()));
    assert_eq!(read("--enable-faults").unwrap().fault_rules, None);
}

#[test]
fn a_node_can_have_more_topology_segments() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().display();
    let flags = format!("--nodeid n1 --topology-key k --statedir {dir}");
    let more = "--topology rack=r1,x/zone=z1 --topology hall=h";
    let settings = run(&format!("{flags} {more}")).unwrap();
    assert_topology(&settings, "k=n1 rack=r1 x/zone=z1 hall=h");

    let more = "--topology rack=r1 --topology-from-node-labels topology.kubernetes.io/zone";
    let settings = run(&format!("{flags} {more}")).unwrap();
    assert!(settings.controller.topology.segments().is_err());
    // All parts see the labels at once.
    let zone = "topology.kubernetes.io/zone=a";
    assert!(settings.topology.take(&pairs(zone)).unwrap().is_empty());
    assert_topology(&settings, &format!("k=n1 rack=r1 {zone}"));
}

#[test]
fn topology_keys_and_values_are_checked() {
    let (own, labels) = ("--topology-key a/k", "--topology-from-node-labels");
    for (flags, part) in [
        ("--topology rack", "--topology"),
        ("--topology rack", "is not KEY=VALUE"),
        ("--topology rack=", "not the value of a label"),
        ("--topology rack=a/b", "not the value of a label"),
        ("--topology =r1", "not a label key"),
        ("--topology a//b=r1", "not a label key"),
        (&format!("{labels} a b"), "unexpected argument"),
        (&format!("{labels} -"), "not a label key"),
        (&format!("{labels} zone,"), labels),
        (
            &format!("{own} --topology A/K=x"),
            "--topology: A/K is the node's own key",
        ),
        (
            &format!("{own} {labels} a/k"),
            &format!("{labels}: a/k is the node's own"),
        ),
        ("--topology r=1,r=2", "--topology: the key r is given twice"),
        (
            "--topology r=1 --topology R=1",
            "--topology: the key R is given twice",
        ),
        (
            &format!("{labels} z,z"),
            &format!("{labels}: the key z is given twice"),
        ),
        (
            &format!("--topology z=1 {labels} z"),
            &format!("{labels}: the key z is given twice, by --topology too"),
        ),
        (
            "--enable-topology=false --topology r=1",
            "--topology says where the node is, but the topology is off",
        ),
        (
            &format!("--enable-topology=false {labels} z"),
            &format!("{labels} says where the node is, but"),
        ),
    ] {
        let refused = run(flags).expect_err(flags);
        assert!(refused.contains(part), "{flags}: {refused}");
    }
    // `hostloop serve` has no controllers that could read labels.
    assert!(parse("serve", "--topology-from-node-labels zone").is_err());
}

#[test]
fn the_node_is_the_host_unless_it_has_an_id() {
    let settings = read("").unwrap();
    assert_eq!(settings.node_id, "host");
    let settings = read("--nodeid n1 --topology-key k").unwrap();
    assert_eq!(settings.node.node_id, "n1");
    assert_eq!(settings.controller.node_id, "n1");
    assert_topology(&settings, "k=n1");
}

#[test]
fn node_ids_and_pools_are_checked() {
    let (long, endless) = ("x".repeat(64), "x".repeat(257));
    for (flags, expected) in [
        (format!("--nodeid {long}"), Some("at most 63")),
        (format!("--nodeid {long} --enable-topology=false"), None),
        (
            format!("--nodeid {endless} --enable-topology=false"),
            Some("256 bytes"),
        ),
        ("--capacity b=1Gi".to_owned(), Some("no pool is named")),
    ] {
        match (read(&flags), expected) {
            (Ok(_), None) => {}
            (Err(why), Some(part)) => assert!(why.contains(part), "{flags}: {why}"),
            (got, _) => panic!("{flags}: {got:?}"),
        }
    }
}

#[test]
fn without_topology_there_is_none() {
    let settings = read("--enable-topology=false").unwrap();
    assert!(settings.controller.topology.segments().unwrap().is_empty());
    assert!(!settings.node.report_topology);
    assert!(!settings.identity.topology);
}

#[test]
fn each_half_of_expansion_can_be_switched_off() {
    for (flags, plugin, controller, node) in [
        ("", true, true, true),
        ("--enable-volume-expansion=false", false, false, false),
        ("--disable-controller-expansion", true, false, true),
        ("--disable-node-expansion", true, true, false),
    ] {
        let settings = read(flags).unwrap();
        let got = (
            settings.identity.expansion,
            settings.controller.expansion,
            settings.node.expansion,
        );
        assert_eq!(got, (plugin, controller, node), "{flags}");
    }
}

#[test]
fn faults_are_off_unless_the_flag_is_given() {
    for (flags, expected) in [
        ("", false),
        ("--enable-faults", true),
        ("--enable-faults=false", false),
    ] {
        assert_eq!(read(flags).unwrap().controller.faults, expected, "{flags}");
    }
}

#[test]
fn the_smaller_volume_limit_is_reported() {
    for (flags, limit, reported) in [
        ("", None, 0),
        ("--attach-limit 16", Some(16), 16),
        ("--maxvolumespernode 9", None, 9),
        ("--maxvolumespernode 9 --attach-limit 16", Some(16), 9),
        ("--maxvolumespernode 20 --attach-limit 16", Some(16), 16),
    ] {
        let settings = read(flags).unwrap();
        assert_eq!(settings.controller.attach_limit, limit, "{flags}");
        assert_eq!(settings.node.max_volumes, reported, "{flags}");
    }
}

#[test]
fn the_form_of_changed_blocks_can_be_chosen() {
    use controller::MetadataBlocks::*;
    let blocks = |flags| read(flags).unwrap().controller.metadata_blocks;
    assert_eq!(blocks(""), Fixed(4096));
    assert_eq!(
        blocks("--snapshot-metadata-block-type=variable_length"),
        Variable
    );
}

#[test]
fn inline_volumes_are_limited_unless_flags_say_otherwise() {
    let limits = |size, volumes, total| node::InlineLimits {
        size,
        volumes,
        total,
    };
    const GIB: u64 = 1 << 30;
    for (flags, expected) in [
        ("", limits(GIB, 64, 16 * GIB)),
        ("--max-inline-size 10Gi", limits(10 * GIB, 64, 16 * GIB)),
        ("--max-inline-volumes=0", limits(GIB, 0, 16 * GIB)),
        ("--max-inline-total 1Ti", limits(GIB, 64, 1024 * GIB)),
    ] {
        assert_eq!(read(flags).unwrap().node.inline, expected, "{flags}");
    }
    assert_eq!(node::InlineLimits::default(), limits(GIB, 64, 16 * GIB));
}

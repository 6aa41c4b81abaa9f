use hostloop_report::status::{PoolReport, VolumeFault, VolumeUser};

use super::*;
use crate::status::report::{NodeRow, PoolRow};
use crate::test_objects::{has, plain};

fn text_of(value: &str) -> Option<String> {
    Some(value.to_owned())
}

/// A fault in this state.
fn fault(state: &'static str) -> VolumeFault {
    VolumeFault {
        name: "gone".to_owned(),
        fault: "gone,for=600s".to_owned(),
        since_ns: 1,
        state: state.into(),
    }
}

fn report() -> ClusterReport {
    let volume = VolumeRow {
        namespace: text_of("demo"),
        claim: text_of("data"),
        state: VolumePhase::Published,
        node: text_of("n1"),
        pool: text_of("default"),
        size_bytes: Some(1 << 30),
        used_bytes: Some(12 << 20),
        filesystem: text_of("ext4"),
        loops: vec!["/dev/loop3".to_owned(), "/dev/loop4".to_owned()],
        direct_io: Some(true),
        pods: vec!["web-0".to_owned()],
        volume: text_of("hostloop-1"),
        handle: text_of("vol-1"),
        class: text_of("hostloop"),
        ..VolumeRow::default()
    };
    let stuck = |why: &str, since_ns| {
        Some(Stuck {
            why: why.to_owned(),
            since_ns,
        })
    };
    ClusterReport {
        nodes: vec![
            NodeRow {
                node: "n1".to_owned(),
                pod: "p1".to_owned(),
                orphans: 2,
                ..Default::default()
            },
            NodeRow {
                node: "n2".to_owned(),
                problem: text_of("no answer"),
                ..Default::default()
            },
            NodeRow {
                node: "n3".to_owned(),
                problem: text_of("no answer"),
                ..Default::default()
            },
        ],
        pools: vec![
            PoolRow {
                node: "n1".to_owned(),
                pool: PoolReport {
                    name: "default".to_owned(),
                    kind: "directory".into(),
                    state: "open".into(),
                    fs: text_of("xfs"),
                    reflinks: Some(true),
                    size_bytes: Some(10 << 30),
                    free_bytes: Some(9 << 30),
                    available_bytes: Some(8 << 30),
                    promised_bytes: Some(1 << 30),
                    volumes: 1,
                    path: "/var/lib/hostloop".into(),
                    ..PoolReport::default()
                },
            },
            PoolRow {
                node: "n1".to_owned(),
                pool: PoolReport {
                    name: "fast".to_owned(),
                    kind: "device".into(),
                    state: "missing".into(),
                    why: text_of("no such device"),
                    ..PoolReport::default()
                },
            },
        ],
        volumes: vec![
            VolumeRow {
                namespace: text_of("demo"),
                claim: text_of("new"),
                stuck: stuck(
                    "ProvisioningFailed: no\n room \u{1b}[31m",
                    Some(60_000_000_000),
                ),
                ..VolumeRow::default()
            },
            volume,
            VolumeRow {
                namespace: text_of("demo"),
                inline: text_of("scratch"),
                state: VolumePhase::Staged,
                pods: vec!["job".to_owned()],
                ..VolumeRow::default()
            },
            VolumeRow {
                state: VolumePhase::Unclaimed,
                note: text_of("no PersistentVolume has it"),
                ..VolumeRow::default()
            },
        ],
        snapshots: vec![
            SnapshotRow {
                namespace: text_of("demo"),
                name: text_of("bad"),
                source: text_of("data"),
                stuck: stuck("full", None),
                ..SnapshotRow::default()
            },
            SnapshotRow {
                namespace: text_of("demo"),
                name: text_of("good"),
                ready: Some(true),
                ..SnapshotRow::default()
            },
        ],
        missing: vec!["you may not list events".to_owned()],
    }
}

fn lines(report: &ClusterReport, look: TableStyle) -> Vec<String> {
    plain(&text(
        report,
        TableStyle {
            now_ns: 90_000_000_000,
            ..look
        },
    ))
}

#[test]
fn what_is_stuck_comes_first() {
    assert_eq!(
        lines(&report(), TableStyle::default()),
        [
            "Stuck (3)",
            "  pool fast on node n1: no such device",
            "  new: ProvisioningFailed: no room \\u{1b}[31m (30s ago)",
            "  snapshot bad: full",
            "",
            "Pools",
            "  NODE  NAME     KIND       STATE    FS   REFLINKS   SIZE  AVAILABLE  PROMISED  \
             VOLUMES  SNAPSHOTS",
            "  n1    default  directory  open     xfs  yes       10GiB       8GiB      1GiB  \
             \u{20}     1          0",
            "  n1    fast     device     missing  -    -             -          -         -  \
             \u{20}     0          0",
            "",
            "Volumes",
            "  CLAIM            NODE  SIZE  ON-DISK  FS    LOOP         POD    STATE      AGE  NOTE",
            "  new              -        -        -  -     -            -      stuck      90s  -",
            "  data             n1    1GiB    12MiB  ext4  loop3,loop4  web-0  published  90s  -",
            "  pod/job/scratch  -        -        -  -     -            job    staged     90s  -",
            "  -                -        -        -  -     -            -      unclaimed  90s  no \
             PersistentVolume has it",
            "",
            "Snapshots",
            "  SNAPSHOT  SOURCE  NODE  SIZE  ON-DISK  STATE  AGE",
            "  bad       data    -        -        -  stuck  90s",
            "  good      -       -        -        -  ready  90s",
            "",
            "Not known",
            "  nodes n2, n3: no answer",
            "  you may not list events",
            "",
            "Without an owner (hostloop fsck explains it)",
            "  node n1: 2 things; ask in pod p1",
        ]
    );
}

#[test]
fn a_fault_is_in_the_state_of_its_volume() {
    let mut report = report();
    report.volumes[1].fault = Some(fault("active"));
    let whole = lines(&report, TableStyle::default()).join("\n");
    has(&whole, &["web-0  published,fault-gone  90s"]);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["volumes"][1]["fault"]["state"], "active");
    assert!(json["volumes"][0]["fault"].is_null());
}

#[test]
fn more_and_fewer_columns() {
    let wide = lines(
        &report(),
        TableStyle {
            wide: true,
            namespaces: true,
            ..TableStyle::default()
        },
    );
    let whole = wide.join("\n");
    has(
        &whole,
        &[
            "NAMESPACE  CLAIM",
            "/var/lib/hostloop",
            "hostloop-1",
            "vol-1",
            "direct",
            "demo/new: Provisioning",
            "demo/snapshot bad: full",
        ],
    );
    let few = lines(
        &report(),
        TableStyle {
            only_objects: true,
            ..TableStyle::default()
        },
    );
    assert!(!few.iter().any(|line| line == "Pools"), "{few:?}");
    assert_eq!(few[0], "Stuck (2)");
}

#[test]
fn tables_fit_a_narrow_terminal() {
    let look = TableStyle {
        width: Some(100),
        ..TableStyle::default()
    };
    let mut report = report();
    report.volumes[1].claim = Some("a-claim-with-a-very-long-name-that-does-not-fit".to_owned());
    let lines = lines(&report, look);
    let start = lines.iter().position(|line| line == "Volumes").unwrap();
    let table: Vec<_> = lines[start..]
        .iter()
        .take_while(|line| !line.is_empty())
        .collect();
    assert!(
        table.iter().all(|line| line.chars().count() <= 100),
        "{table:#?}"
    );
}

#[test]
fn an_empty_cluster() {
    let report = ClusterReport::default();
    assert_eq!(
        lines(&report, TableStyle::default()),
        ["No volumes and no snapshots."]
    );
}

#[test]
fn names_of_nodes() {
    for (nodes, text) in [
        (vec!["n1"], "node n1"),
        (vec!["n1", "n2"], "nodes n1, n2"),
        (vec!["n"; 7], "nodes n, n, n, n, n and 2 more"),
    ] {
        let nodes: Vec<String> = nodes.into_iter().map(str::to_owned).collect();
        assert_eq!(list(&nodes), text);
    }
}

#[test]
fn states_in_words() {
    let stuck = || Some(Stuck::default());
    for (state, stuck, text) in [
        (VolumePhase::Pending, None, "Pending"),
        (VolumePhase::Pending, stuck(), "stuck"),
        (VolumePhase::Lost, stuck(), "stuck"),
        (VolumePhase::Staged, stuck(), "staged, stuck"),
        (VolumePhase::Published, None, "published"),
    ] {
        let row = VolumeRow {
            state,
            stuck,
            ..VolumeRow::default()
        };
        assert_eq!(row.state_words(), text);
    }
    for (stuck, fault_state, text) in [
        (None, "active", "published, fault gone"),
        (None, "over", "published"),
        (stuck(), "stopped", "published, stuck, fault gone"),
    ] {
        let row = VolumeRow {
            state: VolumePhase::Published,
            stuck,
            fault: Some(fault(fault_state)),
            ..VolumeRow::default()
        };
        assert_eq!(row.state_words(), text);
    }
    for (ready, name, deleting, text) in [
        (Some(true), Some("s"), false, "ready"),
        (Some(false), Some("s"), false, "being taken"),
        (None, Some("s"), false, "being taken"),
        (None, None, false, "unclaimed"),
        (Some(true), None, false, "ready"),
        (Some(true), Some("s"), true, "Deleting"),
    ] {
        let row = SnapshotRow {
            ready,
            name: name.map(str::to_owned),
            deleting,
            ..SnapshotRow::default()
        };
        assert_eq!(row.state_words(), text);
    }
    for (ready, text) in [
        (Some(true), "ready, power cut"),
        (Some(false), "being taken"),
    ] {
        let row = SnapshotRow {
            ready,
            name: text_of("s"),
            consistency: Some("powercut".into()),
            ..SnapshotRow::default()
        };
        assert_eq!(row.state_words(), text);
    }
}

#[test]
fn the_users_of_a_volume_are_its_nodes() {
    let user = |node: &str, published, pins| VolumeUser {
        node: node.to_owned(),
        published,
        pins,
    };
    let mut report = report();
    report.volumes[1].users = vec![
        user("n1", true, true),
        user("n2", true, false),
        user("n3", false, true),
    ];
    let lines = plain(&text(&report, TableStyle::default())).join("\n");
    has(&lines, &["USED-BY", "n1,n2(attached),n3(held)"]);
    report.volumes[1].users.clear();
    let lines = plain(&text(&report, TableStyle::default())).join("\n");
    assert!(!lines.contains("USED-BY"), "{lines}");
}

//! A volume for one node at a time follows its pod.

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{BUSYBOX, check, wait_for};
use serde_json::json;

use crate::site::{NAMESPACE, Site};

/// Appends numbers, and says each of them once it is on the disk.
const WRITE: &str = "n=$(tail -n 1 /log/numbers 2>/dev/null); n=${n:-0}; while :; do n=$((n + 1)); \
                     echo $n >> /log/numbers && sync /log/numbers && echo $n; sleep 0.05; done";

/// Drains the node of a writer again and again. No number that it has said is lost.
pub(crate) async fn a_writer_moves(site: &Site, times: u32) {
    site.claim("log", "ext4", "ReadWriteOnce", json!({}));
    let writer = json!({"image": BUSYBOX, "command": ["sh", "-c", WRITE]});
    site.deployment("writer", ("log", "/log"), 0, writer);
    let mut here = running(site, "").await;
    for turn in 0..times {
        let said = drained(site, &here).await;
        let next = running(site, &here.node).await;
        site.cluster.kubectl(&["uncordon", &here.node]);
        let found = site.sh(&next.name, &format!("grep -c -x {said} /log/numbers"));
        assert_eq!(found, "1\n", "{said} is lost in turn {turn}");
        here = next;
    }
    let moved = driver_ms(site, "log") / f64::from(times + 1);
    let odd = site.sh(
        &here.name,
        "awk '$1 != NR { print NR \": \" $0; exit }' /log/numbers",
    );
    assert_eq!(odd, "", "the numbers are not in order");
    site.cluster.kubectl(&[
        "delete",
        "deployment",
        "-n",
        NAMESPACE,
        "writer",
        "--timeout=300s",
    ]);
    site.delete_claims(&["log"]);
    println!(
        "{times} moves of a writer, and no number lost; the driver took {moved:.1} ms for each start"
    );
}

/// How long the driver takes to start a pod again on the same node: the floor of a move.
pub(crate) fn restarts_in_place(site: &Site, times: u32) {
    site.claim("still", "ext4", "ReadWriteOnce", json!({}));
    for _ in 0..times {
        site.run("still", 1, &["still"], &[]);
        site.stop("still");
    }
    let restarted = driver_ms(site, "still") / f64::from(times);
    site.delete_claims(&["still"]);
    println!("{times} starts in place: the driver took {restarted:.1} ms for each");
}

/// What the driver took for attaching, staging and publishing a claim's volume, by its logs, without what
/// Kubernetes waits for.
fn driver_ms(site: &Site, claim: &str) -> f64 {
    let handle = site.cluster.handle(NAMESPACE, claim);
    let logs = site
        .cluster
        .logs("hostloop", "-l=app.kubernetes.io/name=hostloop");
    let field = |line: &str, name: &str| {
        let (_, value) = line.split_once(&format!(" {name}="))?;
        Some(value.split(' ').next()?.trim_matches('"').to_owned())
    };
    let starts = [
        "ControllerPublishVolume",
        "NodeStageVolume",
        "NodePublishVolume",
    ];
    let calls = logs.lines().filter(|line| {
        field(line, "about").is_some_and(|about| about == handle)
            && field(line, "code").is_some_and(|code| code == "OK")
            && field(line, "method").is_some_and(|method| starts.contains(&&*method))
    });
    let took = calls.filter_map(|line| field(line, "ms")?.parse::<f64>().ok());
    took.sum()
}

/// The writer's pod, and its node.
struct Writer {
    name: String,
    node: String,
}

/// Waits until the writer runs on another node than this one, and has said something.
async fn running(site: &Site, not_on: &str) -> Writer {
    wait_for("the writer", PATIENCE, async || {
        let pods = site.cluster.try_kubectl(&[
            "get",
            "pods",
            "-n",
            NAMESPACE,
            "-l",
            "app=writer",
            "--field-selector=status.phase=Running",
            "-o",
            "jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{\"\\n\"}{end}",
        ])?;
        let mut found = pods.lines().filter_map(|line| line.split_once(' '));
        let Some((name, node)) = found.find(|(_, node)| *node != not_on) else {
            return Err(site.cluster.kubectl(&["get", "events", "-n", NAMESPACE]));
        };
        let said = site.cluster.try_kubectl(&["logs", "-n", NAMESPACE, name])?;
        check(!said.is_empty(), || "it has said nothing".to_owned())?;
        Ok(Writer {
            name: name.to_owned(),
            node: node.to_owned(),
        })
    })
    .await
}

/// Drains the writer's node, and returns the last number that it said.
async fn drained(site: &Site, writer: &Writer) -> u64 {
    let log = ["logs", "-n", NAMESPACE, &writer.name];
    // The pod may be gone before its log is followed.
    let earlier = wait_for("a number", PATIENCE, async || {
        let said = site.cluster.try_kubectl(&log)?;
        last_number(&said).ok_or(said)
    })
    .await;
    let followed = std::thread::scope(|scope| {
        let follow = [&log[..], &["--follow"]].concat();
        let followed = scope.spawn(move || site.cluster.try_kubectl(&follow));
        site.cluster.kubectl(&[
            "drain",
            &writer.node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--pod-selector=app=writer",
            "--timeout=300s",
        ]);
        followed.join().expect("kubectl was run")
    });
    let followed = followed.unwrap_or_else(|said| said);
    last_number(&followed).unwrap_or(earlier)
}

fn last_number(log: &str) -> Option<u64> {
    log.lines().filter_map(|line| line.parse().ok()).max()
}

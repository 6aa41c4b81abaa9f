//! Databases on volumes of several nodes: PostgreSQL moves from node to node, and five pods write one SQLite.

use std::collections::BTreeSet;
use std::time::Duration;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{pod, wait_for};
use hostloop_test::{machine, tools};
use serde_json::{Value, json};

use crate::site::{NAMESPACE, NODES, Site};

/// The pods that write one SQLite, and their nodes.
const WRITERS: [(&str, u32); 5] = [("a", 1), ("b", 2), ("c", 3), ("d", 2), ("e", 3)];

/// How many transactions each of them commits.
const TRANSACTIONS: usize = 500;

/// More rows than a client writes to PostgreSQL before it ends. With a limit, a test that fails has an end, too.
const ROWS: u64 = 20_000;

/// SQLite with its usual journal. A transaction waits for those of others.
const SQLITE: &str = "sqlite3 -bail -cmd '.timeout 300000' /sqlite/db";

/// Each transaction of all pods is there, and read what the one before it wrote.
pub(crate) fn five_pods_write_one_sqlite(site: &Site) {
    let image = loaded(site, "sqlite");
    site.claim("sqlite", "xfs", "ReadWriteMany", json!({}));
    for (name, node) in WRITERS {
        start(site, &image, name, node, &["sqlite"], json!({}));
    }
    let sql = |pod: &str, sql: &str| site.sh(pod, &format!("{SQLITE} \"{sql}\""));
    assert_eq!(sql("a", "PRAGMA journal_mode"), "delete\n");
    sql(
        "a",
        "CREATE TABLE records (pod TEXT, number INTEGER); \
         CREATE TABLE total (number INTEGER); \
         INSERT INTO total VALUES (0)",
    );
    std::thread::scope(|scope| {
        for (name, _) in WRITERS {
            let transaction = format!(
                "BEGIN IMMEDIATE; \
                 UPDATE total SET number = number + 1; \
                 INSERT INTO records VALUES ('{name}', $n); \
                 COMMIT"
            );
            let all = format!(
                "for n in $(seq {TRANSACTIONS}); do {SQLITE} \"{transaction}\" || exit; done"
            );
            scope.spawn(move || site.sh(name, &all));
        }
    });
    let number = TRANSACTIONS * WRITERS.len();
    for (name, _) in WRITERS {
        let found = sql(
            name,
            "SELECT number FROM total; \
             SELECT count(*) FROM (SELECT DISTINCT pod, number FROM records); \
             PRAGMA integrity_check",
        );
        assert_eq!(found, format!("{number}\n{number}\nok\n"), "in pod {name}");
    }
    for (name, _) in WRITERS {
        site.stop(name);
    }
    site.delete_claims(&["sqlite"]);
    println!("{number} transactions of five pods in one SQLite, and none lost");
}

/// Drains the node of a PostgreSQL again and again, and each fourth time ends it, while a client writes. No row is
/// lost that it has acknowledged.
pub(crate) async fn postgresql_moves(site: &Site, times: u32) {
    let image = loaded(site, "postgresql");
    // Its owner is node 1, so it can be attached and detached while another node is down.
    site.claim("postgresql", "ext4", "ReadWriteOnce", json!({}));
    site.run("maker", 1, &["postgresql"], &[]);
    site.stop("maker");
    let [ends, stays] = site.users();
    let postgresql = Postgresql {
        site,
        clients: [1, stays],
    };
    for node in postgresql.clients {
        let network = json!({"hostNetwork": true});
        start(site, &image, &client(node), node, &[], network);
    }
    schedules_on(site, &postgresql.clients);
    let server = json!({
        "image": image,
        "env": [
            {"name": "POSTGRES_HOST_AUTH_METHOD", "value": "trust"},
            {"name": "PGDATA", "value": "/data/db"},
        ],
    });
    site.deployment("postgresql", ("postgresql", "/data"), 1, server);

    let mut here = postgresql.running(None).await;
    let created = postgresql.psql(&here, "CREATE TABLE records (number bigint)");
    created.unwrap_or_else(|why| panic!("{why}"));
    let mut acknowledged: BTreeSet<u64> = BTreeSet::new();
    for turn in 0..times {
        // The row after the last one may be there, too: without its acknowledgement.
        let first = acknowledged.last().map_or(1, |last| last + 2);
        let written = if here.node == ends {
            schedules_on(site, &postgresql.clients);
            let node = format!("node-{ends}");
            postgresql.written(&here, first, || site.cluster.kill(&node))
        } else {
            let next = if turn % 4 == 2 {
                ends
            } else {
                postgresql.other(&here)
            };
            schedules_on(site, &[next]);
            postgresql.written(&here, first, || drain(site, here.node))
        };
        assert!(!written.is_empty(), "no row was written in turn {turn}");
        acknowledged.extend(written);
        if here.node == ends {
            site.taint(ends, "=nodeshutdown:NoExecute");
        }
        let next = postgresql.running(Some(here.node)).await;
        if here.node == ends {
            site.cluster.start(&format!("node-{ends}"));
            site.taint(ends, "-");
            site.ready(ends).await;
        }
        here = next;
        let found = postgresql.rows(&here);
        let lost: Vec<_> = acknowledged.difference(&found).collect();
        assert!(lost.is_empty(), "lost in turn {turn}: {lost:?}");
    }

    let all: Vec<u32> = (1..=NODES).collect();
    schedules_on(site, &all);
    let delete = ["delete", "deployment", "postgresql", "-n", NAMESPACE];
    let delete = [&delete[..], &["--timeout=300s", "--cascade=foreground"]].concat();
    site.cluster.kubectl(&delete);
    for node in postgresql.clients {
        site.stop(&client(node));
    }
    site.delete_claims(&["postgresql"]);
    let rows = acknowledged.len();
    println!("{times} moves of a PostgreSQL, and none of {rows} acknowledged rows lost");
}

/// Loads the image of a database into all nodes. Returns its name, which an example of the crash explorer has.
fn loaded(site: &Site, database: &str) -> String {
    let images = tools::database_images();
    site.cluster.load(&images.join(format!("{database}.tar")));
    let example = format!("deploy/examples/explore/{database}-off.yaml");
    let example = std::fs::read_to_string(machine::root().join(example));
    let example = example.expect("the example is there");
    let mut images = example
        .lines()
        .filter_map(|line| line.trim().strip_prefix("image: "));
    images.next().expect("it names an image").to_owned()
}

/// Starts a pod of this image on a node, with the claims at `/NAME`, and waits until it is ready.
fn start(site: &Site, image: &str, name: &str, node: u32, claims: &[&str], change: Value) {
    let command = ["sleep", "1000000"];
    let mut manifest = pod(NAMESPACE, name, &command, (claims, &[]), change);
    let spec = &mut manifest["spec"];
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": site.cluster.node(node)});
    spec["containers"][0]["image"] = json!(image);
    site.cluster.apply(&manifest.to_string());
    site.cluster.pod_ready(NAMESPACE, name);
}

/// The name of a client's pod on a node.
fn client(node: u32) -> String {
    format!("client-{node}")
}

/// New pods start on these nodes alone.
fn schedules_on(site: &Site, nodes: &[u32]) {
    for node in 1..=NODES {
        let verb = if nodes.contains(&node) {
            "uncordon"
        } else {
            "cordon"
        };
        site.cluster.kubectl(&[verb, &site.cluster.node(node)]);
    }
}

fn drain(site: &Site, node: u32) {
    site.cluster.kubectl(&[
        "drain",
        &site.cluster.node(node),
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--pod-selector=app=postgresql",
        "--timeout=300s",
    ]);
}

/// A PostgreSQL that moves.
struct Postgresql<'s> {
    site: &'s Site,
    /// Nodes that stay up, and have a client. It uses the network of the machine, which reaches all pods.
    clients: [u32; 2],
}

/// Where it runs.
struct Place {
    node: u32,
    address: String,
}

impl Postgresql<'_> {
    /// Waits until it answers on another node than this one.
    async fn running(&self, not_on: Option<u32>) -> Place {
        wait_for("the database", PATIENCE, async || {
            let pods = self.site.cluster.try_kubectl(&[
                "get",
                "pods",
                "-n",
                NAMESPACE,
                "-l",
                "app=postgresql",
                "--field-selector=status.phase=Running",
                "-o",
                "jsonpath={range .items[*]}{.spec.nodeName} {.status.podIP}{\"\\n\"}{end}",
            ])?;
            let mut places = pods.lines().filter_map(|line| self.place(line));
            let Some(here) = places.find(|place| Some(place.node) != not_on) else {
                return Err(self
                    .site
                    .cluster
                    .kubectl(&["get", "events", "-n", NAMESPACE]));
            };
            self.psql(&here, "SELECT 1")?;
            Ok(here)
        })
        .await
    }

    /// Reads a line of node and address.
    fn place(&self, line: &str) -> Option<Place> {
        let (name, address) = line.split_once(' ')?;
        let node = (1..=NODES).find(|node| self.site.cluster.node(*node) == name)?;
        Some(Place {
            node,
            address: address.to_owned(),
        })
    }

    /// A node with a client, and without the database.
    fn other(&self, here: &Place) -> u32 {
        let [one, other] = self.clients;
        if one == here.node { other } else { one }
    }

    fn psql(&self, here: &Place, sql: &str) -> Result<String, String> {
        let (pod, line) = (client(self.other(here)), psql(here, sql));
        self.site
            .cluster
            .try_exec(NAMESPACE, &pod, &["sh", "-c", &line])
    }

    /// The rows that it has.
    fn rows(&self, here: &Place) -> BTreeSet<u64> {
        let rows = self.psql(here, "SELECT number FROM records");
        numbers(&rows.unwrap_or_else(|why| panic!("{why}")))
    }

    /// Writes rows from this number on, while `end` ends the database. Returns those that were acknowledged.
    fn written(&self, here: &Place, first: u64, end: impl FnOnce()) -> BTreeSet<u64> {
        let insert = psql(here, "INSERT INTO records VALUES ($n)");
        let last = first + ROWS;
        let line = format!("for n in $(seq {first} {last}); do {insert} || break; echo $n; done");
        let pod = client(self.other(here));
        let said = std::thread::scope(|scope| {
            let writer = scope.spawn(|| self.site.sh(&pod, &line));
            std::thread::sleep(Duration::from_secs(2));
            end();
            writer.join().expect("the client ends with the database")
        });
        numbers(&said)
    }
}

/// A line of shell. A node that ends may leave a connection without an answer.
fn psql(here: &Place, sql: &str) -> String {
    let address = &here.address;
    format!("timeout 20 psql --host={address} --username=postgres -qAtXc \"{sql}\"")
}

fn numbers(said: &str) -> BTreeSet<u64> {
    let lines = said.lines();
    lines
        .map(|line| line.parse().unwrap_or_else(|_| panic!("{said}")))
        .collect()
}

//! Requests to the API server, and what it sent to its watchers, between two points of time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::time::Duration;

use hostloop_test::cluster::{Cluster, Request};
use serde::{Deserialize, Serialize};

/// The API server writes its log a little after its answers.
const SETTLE: Duration = Duration::from_secs(5);
/// How many looks it may take until the requests have ended.
const MOST_LOOKS: usize = 60;

/// Requests of one user.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// All requests but watches and those of leases and events.
    pub(super) requests: usize,
    /// By verb and resource.
    pub(crate) by_kind: BTreeMap<String, usize>,
    /// Those that were refused because another user had changed or created the object.
    pub(super) conflicts: usize,
    /// By verb and resource.
    pub(super) conflicts_by_kind: BTreeMap<String, usize>,
    /// Those that failed on the server's side, or were too many.
    pub(super) failed: usize,
    /// Requests of leases.
    pub(super) leases: usize,
    /// Requests of events, which may come late, or not at all where there are too many.
    pub(crate) events: usize,
    /// Writes of other users that were refused for the same reason. The cluster's own controllers,
    /// for example, may try theirs again only after a long while.
    pub(super) conflicts_of_others: BTreeMap<String, usize>,
}

/// What watchers received.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct WatchTraffic {
    pub(super) events: f64,
    pub(super) bytes: f64,
}

/// Reads the audit log from where the last look ended: reading all of it again takes minutes.
pub(crate) struct Reader {
    log: File,
    at: u64,
    users: Vec<String>,
}

impl Reader {
    /// Reads what these users ask from now on.
    pub(crate) fn of(cluster: &Cluster, users: &[&str]) -> Reader {
        let path = cluster.audit_log();
        let mut log = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let at = log.seek(SeekFrom::End(0)).expect("a file has an end");
        Reader {
            log,
            at,
            users: users.iter().map(|user| (*user).to_owned()).collect(),
        }
    }

    /// What was asked since the last look.
    pub(super) async fn settled(&mut self) -> Asked {
        let mut asked = Asked::default();
        self.add(&mut asked).await;
        asked
    }

    /// What was asked since the last look, after waiting until no more objects are asked for.
    pub(crate) async fn ended(&mut self) -> Asked {
        let mut asked = Asked::default();
        for _ in 0..MOST_LOOKS {
            let before = asked.of_objects();
            self.add(&mut asked).await;
            if asked.of_objects() == before {
                return asked;
            }
        }
        panic!("the requests do not end: {asked:?}");
    }

    async fn add(&mut self, asked: &mut Asked) {
        tokio::time::sleep(SETTLE).await;
        tokio::task::block_in_place(|| self.read(asked));
    }

    fn read(&mut self, asked: &mut Asked) {
        let sought = self.log.seek(SeekFrom::Start(self.at));
        sought.expect("the log can be read on");
        let mut lines = BufReader::new(&self.log);
        let mut text = String::new();
        loop {
            text.clear();
            let length = lines.read_line(&mut text).expect("the log is text");
            // The last line may be half written: it is read the next time.
            if length == 0 || !text.ends_with('\n') {
                return;
            }
            self.at += length as u64;
            match Request::parse(&text) {
                Some(request) if self.users.contains(&request.user) => asked.add(&request),
                Some(request) => asked.add_other(&request),
                None => {}
            }
        }
    }
}

impl Asked {
    /// How many requests were of objects. The requests for kinds that the API server does not serve
    /// never end, and the events of thousands of claims come for many minutes.
    fn of_objects(&self) -> usize {
        let discovery = self
            .by_kind
            .iter()
            .filter(|(kind, _)| kind.starts_with("get /apis/"));
        self.requests - discovery.map(|(_, count)| count).sum::<usize>()
    }

    fn add(&mut self, request: &Request) {
        // The cost of a watch is what it sends.
        if request.verb == "watch" {
            return;
        }
        match &*request.resource {
            "leases" => return self.leases += 1,
            "events" => return self.events += 1,
            _ => {}
        }
        let kind = format!("{} {}", request.verb, request.resource);
        self.requests += 1;
        if request.code == 409 {
            self.conflicts += 1;
            *self.conflicts_by_kind.entry(kind.clone()).or_default() += 1;
        }
        if request.code == 429 || request.code >= 500 {
            self.failed += 1;
        }
        *self.by_kind.entry(kind).or_default() += 1;
    }

    fn add_other(&mut self, request: &Request) {
        if request.code == 409 && request.resource != "leases" {
            let Request { user, verb, .. } = request;
            let what = format!("{user}: {verb} {}", request.resource);
            *self.conflicts_of_others.entry(what).or_default() += 1;
        }
    }
}

impl WatchTraffic {
    /// What the API server has sent to all its watchers so far.
    pub(super) fn by(cluster: &Cluster) -> WatchTraffic {
        let metrics = cluster.kubectl(&["get", "--raw", "/metrics"]);
        WatchTraffic {
            events: sum(&metrics, "apiserver_watch_events_total"),
            bytes: sum(&metrics, "apiserver_watch_events_sizes_sum"),
        }
    }

    pub(super) fn since(self, before: WatchTraffic) -> WatchTraffic {
        WatchTraffic {
            events: self.events - before.events,
            bytes: self.bytes - before.bytes,
        }
    }

    /// The traffic per item, where there are so many.
    pub(super) fn each(self, count: f64) -> WatchTraffic {
        WatchTraffic {
            events: self.events / count,
            bytes: self.bytes / count,
        }
    }
}

/// The API server's time on a CPU since its start, in seconds.
pub(super) fn server_cpu_seconds(cluster: &Cluster) -> f64 {
    let metrics = cluster.kubectl(&["get", "--raw", "/metrics"]);
    sum(&metrics, "process_cpu_seconds_total")
}

/// The sum of a metric's values, whatever their labels.
pub(super) fn sum(metrics: &str, name: &str) -> f64 {
    sum_with(metrics, name, "")
}

/// The sum of those of a metric's values that have this label: `verb="watch"`.
pub(super) fn sum_with(metrics: &str, name: &str, label: &str) -> f64 {
    let values = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let is_it = rest.starts_with('{') || rest.starts_with(' ');
        let (labels, value) = rest.rsplit_once(' ').filter(|_| is_it)?;
        value.parse::<f64>().ok().filter(|_| labels.contains(label))
    });
    values.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels() {
        let metrics = "# TYPE seen counter\nseen_total{kind=\"a\",verb=\"watch\"} 2\n\
                       seen_total{kind=\"b\",verb=\"list\"} 3.5\nseen_total_more 7\nseen_total 1\n";
        assert!((sum(metrics, "seen_total") - 6.5).abs() < 1e-9);
        assert!((sum_with(metrics, "seen_total", "verb=\"watch\"") - 2.0).abs() < 1e-9);
        assert!(sum(metrics, "seen").abs() < 1e-9);
    }

    #[test]
    fn leases_and_watches_are_counted_apart() {
        let mut asked = Asked::default();
        for (user, verb, resource, code) in [
            ("us", "watch", "pods", 200),
            ("us", "get", "leases", 200),
            ("us", "update", "leases", 409),
            ("us", "create", "persistentvolumes", 201),
            ("us", "create", "persistentvolumes", 409),
            ("us", "patch", "persistentvolumeclaims", 503),
            ("other", "update", "leases", 409),
            ("other", "update", "nodes", 200),
            ("other", "update", "nodes", 409),
        ] {
            let line = serde_json::json!({
                "auditID": "1", "requestURI": "/x", "verb": verb, "user": {"username": user},
                "objectRef": {"resource": resource}, "responseStatus": {"code": code},
            });
            let request = Request::parse(&line.to_string()).expect("it is a line");
            match user {
                "us" => asked.add(&request),
                _ => asked.add_other(&request),
            }
        }
        assert_eq!((asked.requests, asked.leases), (3, 2));
        assert_eq!((asked.conflicts, asked.failed), (1, 1));
        assert_eq!(asked.by_kind["create persistentvolumes"], 2);
        let others = BTreeMap::from([("other: update nodes".to_owned(), 1)]);
        assert_eq!(asked.conflicts_of_others, others);
    }
}

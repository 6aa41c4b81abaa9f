//! What was asked of the API server, and what it told its watchers, between two points of time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::time::Duration;

use hostloop_test::cluster::Cluster;
use serde::{Deserialize, Serialize};

/// The API server writes its log a little after its answers.
const SETTLE: Duration = Duration::from_secs(5);

/// Requests of one user.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Asked {
    /// All but watches and those of leases and events.
    pub(super) requests: usize,
    /// By verb and resource.
    pub(super) by_kind: BTreeMap<String, usize>,
    /// Those that were refused because somebody else had written meanwhile, or had made the object.
    pub(super) conflicts: usize,
    /// By verb and resource.
    pub(super) conflicts_by_kind: BTreeMap<String, usize>,
    /// Those that failed on the server's side, or were too many.
    pub(super) failed: usize,
    /// Of leases.
    pub(super) leases: usize,
    /// Of events, which come at their leisure, or not at all where there are too many.
    pub(super) events: usize,
    /// Writes of other users that were refused for the same reason: of the cluster's own
    /// controllers, say, which may come back to them only after a long while.
    pub(super) conflicts_of_others: BTreeMap<String, usize>,
}

/// What watchers were told.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Told {
    pub(super) events: f64,
    pub(super) bytes: f64,
}

/// Reads the audit log on from where it was read last: the whole would be read again for minutes.
pub(super) struct Reader {
    log: File,
    at: u64,
    user: String,
}

#[derive(Deserialize)]
struct Line {
    stage: String,
    verb: String,
    user: User,
    #[serde(rename = "objectRef")]
    object: Option<Object>,
    #[serde(rename = "responseStatus")]
    status: Option<Status>,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

impl Reader {
    /// Of what this user asks from now on.
    pub(super) fn of(cluster: &Cluster, user: &str) -> Reader {
        let path = cluster.audit_log();
        let mut log = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let at = log.seek(SeekFrom::End(0)).expect("a file has an end");
        Reader {
            log,
            at,
            user: user.to_owned(),
        }
    }

    /// What was asked since the last look, once nothing more of it comes.
    pub(super) async fn settled(&mut self) -> Asked {
        tokio::time::sleep(SETTLE).await;
        tokio::task::block_in_place(|| self.read())
    }

    fn read(&mut self) -> Asked {
        let mut asked = Asked::default();
        self.log
            .seek(SeekFrom::Start(self.at))
            .expect("the log can be read on");
        let mut lines = BufReader::new(&self.log);
        let mut text = String::new();
        loop {
            text.clear();
            let length = lines.read_line(&mut text).expect("the log is text");
            // The last line may be half written: it is read the next time.
            if length == 0 || !text.ends_with('\n') {
                return asked;
            }
            self.at += length as u64;
            match serde_json::from_str::<Line>(&text) {
                Ok(line) if line.user.username == self.user => asked.add(&line),
                Ok(line) => asked.add_others(line),
                Err(_) => {}
            }
        }
    }
}

impl Asked {
    fn add(&mut self, line: &Line) {
        // A watch is no cost of a volume's; what it is told is.
        if line.verb == "watch" || line.stage != "ResponseComplete" {
            return;
        }
        let object = line.object.as_ref();
        let resource = object.map_or(String::new(), |o| match o.subresource.as_str() {
            "" => o.resource.clone(),
            sub => format!("{}/{sub}", o.resource),
        });
        if resource == "leases" {
            self.leases += 1;
            return;
        }
        if resource == "events" {
            self.events += 1;
            return;
        }
        let kind = format!("{} {resource}", line.verb);
        let code = line.status.as_ref().map_or(0, |status| status.code);
        self.requests += 1;
        if code == 409 {
            self.conflicts += 1;
            *self.conflicts_by_kind.entry(kind.clone()).or_default() += 1;
        }
        if code == 429 || code >= 500 {
            self.failed += 1;
        }
        *self.by_kind.entry(kind).or_default() += 1;
    }

    fn add_others(&mut self, line: Line) {
        let refused = line
            .status
            .as_ref()
            .is_some_and(|status| status.code == 409);
        let object = line
            .object
            .filter(|object| refused && object.resource != "leases");
        if let Some(object) = object {
            let what = format!("{}: {} {}", line.user.username, line.verb, object.resource);
            *self.conflicts_of_others.entry(what).or_default() += 1;
        }
    }
}

impl Told {
    /// What the API server has told all its watchers so far.
    pub(super) fn by(cluster: &Cluster) -> Told {
        let metrics = cluster.kubectl(&["get", "--raw", "/metrics"]);
        Told {
            events: sum(&metrics, "apiserver_watch_events_total"),
            bytes: sum(&metrics, "apiserver_watch_events_sizes_sum"),
        }
    }

    pub(super) fn since(self, before: Told) -> Told {
        Told {
            events: self.events - before.events,
            bytes: self.bytes - before.bytes,
        }
    }
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
        let metrics = "# TYPE told counter\ntold_total{kind=\"a\",verb=\"watch\"} 2\n\
                       told_total{kind=\"b\",verb=\"list\"} 3.5\ntold_total_more 7\ntold_total 1\n";
        assert!((sum(metrics, "told_total") - 6.5).abs() < 1e-9);
        assert!((sum_with(metrics, "told_total", "verb=\"watch\"") - 2.0).abs() < 1e-9);
        assert!(sum(metrics, "told").abs() < 1e-9);
    }

    #[test]
    fn leases_and_watches_are_apart() {
        let line = |verb: &str, resource: &str, code: u16| {
            let line = serde_json::json!({
                "stage": "ResponseComplete", "verb": verb, "user": {"username": "us"},
                "objectRef": {"resource": resource, "subresource": ""},
                "responseStatus": {"code": code},
            });
            serde_json::from_value::<Line>(line).expect("it is a line")
        };
        let mut asked = Asked::default();
        for (verb, resource, code) in [
            ("watch", "pods", 200),
            ("get", "leases", 200),
            ("update", "leases", 409),
            ("create", "persistentvolumes", 201),
            ("create", "persistentvolumes", 409),
            ("patch", "persistentvolumeclaims", 503),
        ] {
            asked.add(&line(verb, resource, code));
        }
        assert_eq!((asked.requests, asked.leases), (3, 2));
        assert_eq!((asked.conflicts, asked.failed), (1, 1));
        assert_eq!(asked.by_kind["create persistentvolumes"], 2);
    }
}

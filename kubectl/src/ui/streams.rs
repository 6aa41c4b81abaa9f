//! The events of all processes: of the pods by `hostloop events` in each (pods/exec), of a driver
//! without a cluster by its socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hostloop_report::events::{self, Header, Request, Said, Stream};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Out;
use super::message::{EventProcess, Message};
use super::pods::WatchedPods;
use crate::api::ApiError;
use crate::cluster::Cluster;
use crate::node_pods::{self, EventPod};
use crate::platform;

/// The pause before a stream that ended is opened again.
const PAUSE: Duration = Duration::from_secs(3);
/// How long a stream may be silent; a process writes an empty line every 10 s.
const SILENCE: Duration = Duration::from_secs(30);

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Read(#[from] events::Error),
    #[error(transparent)]
    Pod(#[from] node_pods::NodeError),
    #[error("the stream ended without an event: {0}")]
    Ended(String),
    #[error("the process has been silent for {} s", SILENCE.as_secs())]
    Silent,
}

/// Follows one process. Its state outlives broken streams, so that only new events are passed on.
struct Follower {
    source: EventProcess,
    out: Out,
    /// The ring and the number of the next event.
    boot: String,
    next: u64,
}

impl Follower {
    fn new(source: EventProcess, out: Out) -> Follower {
        Follower {
            source,
            out,
            boot: String::new(),
            next: 0,
        }
    }

    fn request(&self) -> Request {
        Request {
            from: self.next,
            boot: self.boot.clone(),
            follow: true,
        }
    }

    /// Takes the first line of a stream. Events between the last known one and the first one of the
    /// stream are lost. Events before the page was opened don't count as lost.
    fn begin(&mut self, header: &Header) {
        if header.boot == self.boot {
            self.gap(header.from);
        }
        self.boot = header.boot.clone();
        self.next = header.from;
        self.source.process = header.process.process.clone();
        if let Some(node) = header
            .process
            .node
            .as_ref()
            .filter(|_| self.source.node.is_empty())
        {
            self.source.node = node.clone();
            // Only a driver without a cluster says it first.
            let _ = self.out.node.set(node.clone());
        }
    }

    fn take(&mut self, said: &Said) {
        if let Said::Event { seq, json } = said {
            self.gap(*seq);
            self.next = seq + 1;
            self.out.history.add(Message::event(&self.source, json));
            self.out.verdict_facts.event(json);
        }
    }

    fn gap(&self, seq: u64) {
        if let Some(lost) = seq.checked_sub(self.next).filter(|lost| *lost > 0) {
            self.out.history.add(Message::gap(&self.source, lost));
        }
    }
}

/// Follows a driver without a cluster.
pub(super) async fn of_socket(socket: PathBuf, out: Out) {
    let about = format!("the events of {}", socket.display());
    let mut follower = Follower::new(EventProcess::default(), out);
    loop {
        let ended = follow_socket(&socket, &mut follower, &about).await;
        if let Err(error) = ended {
            follower.out.problems.found(&about, &error.to_string());
        }
        sleep(PAUSE).await;
    }
}

async fn follow_socket(socket: &Path, follower: &mut Follower, about: &str) -> Result<(), Error> {
    let connected = platform::connect(socket).await;
    let (reader, writer) = connected.map_err(|source| events::Error::Connect {
        path: socket.to_owned(),
        source,
    })?;
    let mut stream = Stream::begin(reader, writer, &follower.request()).await?;
    follower.out.problems.solved(about);
    follower.begin(&stream.header);
    while let Some(said) = timeout(SILENCE, stream.next())
        .await
        .map_err(|_| Error::Silent)??
    {
        follower.take(&said);
    }
    Ok(())
}

/// Follows all pods of a cluster, also those that come later.
pub(super) async fn of_pods(cluster: Cluster, mut pods: WatchedPods, out: Out) {
    let mut tasks = Tasks::default();
    while pods.changed().await.is_ok() {
        let found = pods.borrow_and_update().clone();
        tasks.set(&cluster, found, &out);
    }
}

/// The tasks that follow pods, by pod. Dropping them ends them.
#[derive(Default)]
struct Tasks(BTreeMap<String, (watch::Sender<EventPod>, JoinHandle<()>)>);

impl Tasks {
    /// Follows these pods and no others. A pod that is gone is a problem until its node has
    /// another one.
    fn set(&mut self, cluster: &Cluster, pods: Vec<EventPod>, out: &Out) {
        self.0.retain(|name, (pod, task)| {
            let stays = pods.iter().any(|pod| pod.pod.name == *name);
            if !stays {
                task.abort();
                let of = about(&pod.borrow());
                if !pods.iter().any(|pod| about(pod) == of) {
                    out.problems.found(&of, &format!("pod {name} is gone"));
                }
            }
            stays
        });
        for pod in pods {
            let name = pod.pod.name.clone();
            // A container that did not run yet may run now.
            if let Some((known, _)) = self.0.get(&name) {
                known.send_replace(pod);
                continue;
            }
            let (known, current) = watch::channel(pod);
            let task = tokio::spawn(of_pod(cluster.clone(), current, out.clone()));
            self.0.insert(name, (known, task));
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.values().for_each(|(_, task)| task.abort());
    }
}

/// What a problem with the events of a pod is about.
fn about(pod: &EventPod) -> String {
    match pod.process {
        "node" => format!("the events of node {}", pod.pod.node),
        process => format!("the events of the {process}"),
    }
}

async fn of_pod(cluster: Cluster, current: watch::Receiver<EventPod>, out: Out) {
    let mut follower = Follower::new(EventProcess::default(), out);
    loop {
        let pod = current.borrow().clone();
        let about = about(&pod);
        follower.source = EventProcess {
            node: pod.pod.node.clone(),
            process: pod.process.to_owned(),
        };
        let ended = follow_pod(&cluster, &pod, &mut follower, &about).await;
        let forbidden = matches!(
            &ended,
            Err(Error::Pod(node_pods::NodeError::Api(
                ApiError::Forbidden { .. }
            )))
        );
        if let Err(error) = ended {
            follower.out.problems.found(&about, &error.to_string());
        }
        sleep(if forbidden { 20 * PAUSE } else { PAUSE }).await;
    }
}

async fn follow_pod(
    cluster: &Cluster,
    pod: &EventPod,
    follower: &mut Follower,
    about: &str,
) -> Result<(), Error> {
    let mut process = pod.follow(cluster, &follower.request()).await?;
    // Kept open: the program in the pod ends with its standard input.
    let _input = process.stdin();
    let Some(output) = process.stdout() else {
        return Err(Error::Ended("the connection has no output".to_owned()));
    };
    let mut lines = BufReader::new(output).lines();
    let mut began = false;
    loop {
        let line = timeout(SILENCE, lines.next_line())
            .await
            .map_err(|_| Error::Silent)?;
        let Some(line) = line.map_err(events::Error::Broken)? else {
            break;
        };
        if began {
            follower.take(&events::said(&line)?);
        } else {
            follower.begin(&events::header(&line)?);
            follower.out.problems.solved(about);
            began = true;
        }
    }
    if began {
        Ok(())
    } else {
        Err(Error::Ended(node_pods::why_it_failed(process).await))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn header(boot: &str, from: u64) -> Header {
        let value = json!({"events": "hostloop.events/v1", "boot": boot, "process": "node",
            "node": "n1", "version": "1", "from": from});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_is_lost_is_said_and_nothing_comes_twice() {
        let out = Out::new();
        let mut follower = Follower::new(EventProcess::default(), out.clone());
        let event = |seq: u64| Said::Event {
            seq,
            json: json!({"seq": seq}),
        };
        // The page comes late: the events before are not lost to it.
        follower.begin(&header("a", 7));
        follower.take(&event(7));
        follower.take(&Said::Nothing);
        follower.take(&event(10));
        assert_eq!(follower.request().from, 11);
        // The stream broke, and the ring went on.
        follower.begin(&header("a", 14));
        follower.take(&event(14));
        // The process started again.
        follower.begin(&header("b", 0));
        follower.take(&event(0));
        let messages = out.history.all().texts;
        let messages: Vec<Value> = messages
            .iter()
            .map(|text| serde_json::from_str(text).unwrap())
            .collect();
        let seen: Vec<(&str, u64)> = messages
            .iter()
            .map(|message| match message["type"].as_str().unwrap() {
                "gap" => ("gap", message["lost"].as_u64().unwrap()),
                _ => ("event", message["event"]["seq"].as_u64().unwrap()),
            })
            .collect();
        let expected = [
            ("event", 7),
            ("gap", 2),
            ("event", 10),
            ("gap", 3),
            ("event", 14),
            ("event", 0),
        ];
        assert_eq!(seen, expected);
        assert_eq!(messages[0]["node"], "n1");
    }
}

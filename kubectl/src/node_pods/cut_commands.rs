//! `hostloop cuts` in the pod of a node: power cuts of a volume, many in one burst.

use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use hostloop_report::cuts::{CutList, CutsLine, DroppedCuts, KeptCut};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::time::timeout;

use super::{
    DEADLINE, MAX_OUTPUT, NodeError, NodePod, ask, ask_within, read, read_error, read_json,
    succeeded,
};
use crate::cluster::Cluster;

/// How long the deletion of an exploration's cuts may take: it waits for copies of them.
const DROP_DEADLINE: Duration = Duration::from_secs(300);
/// How much later than planned the next line of a burst may come.
const LATEST: Duration = Duration::from_secs(120);

/// A burst of cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    pub(crate) cuts: u32,
    /// The time from one cut to the next.
    pub(crate) every: Duration,
}

impl NodePod {
    /// Takes cuts of a volume, and passes each line on as it comes. The burst ends with the
    /// connection, so with the future, too.
    pub(crate) async fn take_cuts(
        &self,
        cluster: &Cluster,
        volume: &str,
        burst: Burst,
        mut said: impl FnMut(CutsLine),
    ) -> Result<(), NodeError> {
        let command = self.take_command(volume, burst);
        let mut process = self.start(cluster, &command).await?;
        let status = process.take_status();
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let mut has_ended = false;
        let lines = self.lines(stdout, burst.every + LATEST, |line| {
            has_ended |= matches!(line, CutsLine::Ended(_));
            said(line);
        });
        let printed = self.with_errors(lines, stderr).await?;
        if has_ended {
            // Why there are fewer cuts than asked for is in that line.
            return Ok(());
        }
        let status = match status {
            Some(status) => timeout(DEADLINE, status).await,
            None => Ok(None),
        };
        let status = status.map_err(|_| self.late(DEADLINE))?;
        succeeded(self, &command, status, &printed)?;
        Err(read_error(self, &"the burst of cuts has no end"))
    }

    /// Reads the standard error of a burst with its lines. It may last a little longer than they.
    async fn with_errors(
        &self,
        lines: impl Future<Output = Result<(), NodeError>>,
        stderr: Option<impl AsyncRead + Unpin>,
    ) -> Result<String, NodeError> {
        let printed = match select(pin!(lines), pin!(read(stderr))).await {
            Either::Left((lines, printed)) => {
                lines?;
                let printed = timeout(DEADLINE, printed).await;
                printed.map_err(|_| self.late(DEADLINE))?
            }
            Either::Right((printed, lines)) => {
                lines.await?;
                printed
            }
        };
        printed.map_err(|error| read_error(self, &error))
    }

    /// Reads the lines of a burst to their end. Each of them may take this long.
    async fn lines(
        &self,
        stdout: Option<impl AsyncRead + Unpin>,
        longest: Duration,
        mut said: impl FnMut(CutsLine),
    ) -> Result<(), NodeError> {
        let Some(stdout) = stdout else { return Ok(()) };
        let mut lines = BufReader::new(stdout.take(MAX_OUTPUT)).lines();
        loop {
            let next = timeout(longest, lines.next_line()).await;
            let next = next.map_err(|_| self.late(longest))?;
            match next.map_err(|error| read_error(self, &error))? {
                Some(line) => said(read_json(self, &line)?),
                None => return Ok(()),
            }
        }
    }

    /// Makes an ordinary snapshot of a cut, which stays.
    pub(crate) async fn keep_cut(
        &self,
        cluster: &Cluster,
        snapshot: &str,
    ) -> Result<KeptCut, NodeError> {
        ask(cluster, self, &self.command(&["cuts", "keep", snapshot])).await
    }

    /// Deletes the cuts of an exploration that are left, and ends its burst.
    pub(crate) async fn drop_cuts(
        &self,
        cluster: &Cluster,
        exploration: &str,
    ) -> Result<DroppedCuts, NodeError> {
        let command = self.command(&["cuts", "drop", exploration]);
        ask_within(cluster, self, &command, DROP_DEADLINE).await
    }

    /// Lists the cuts on the node.
    pub(crate) async fn list_cuts(&self, cluster: &Cluster) -> Result<CutList, NodeError> {
        ask(cluster, self, &self.command(&["cuts", "list", "--json"])).await
    }

    /// `hostloop cuts take`. It ends with its standard input.
    fn take_command(&self, volume: &str, burst: Burst) -> Vec<String> {
        let mut command = self.command(&["cuts", "take", "--until-eof"]);
        command.push(format!("--volume={volume}"));
        command.push(format!("--cuts={}", burst.cuts));
        command.push(format!("--every={}ms", burst.every.as_millis()));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_objects::{node_pod, read as object};

    fn pod() -> NodePod {
        NodePod::of(&object(node_pod("hostloop-a", "n1"))).unwrap()
    }

    #[test]
    fn commands_of_a_burst() {
        let burst = Burst {
            cuts: 200,
            every: Duration::from_millis(1500),
        };
        assert_eq!(
            pod().take_command("vol-1", burst).join(" "),
            "hostloop cuts take --until-eof --volume=vol-1 --cuts=200 --every=1500ms"
        );
    }

    /// A node that keeps the connection open for good.
    #[tokio::test(start_paused = true)]
    async fn errors_without_an_end_are_late() {
        let (near, _far) = tokio::io::duplex(64);
        let pod = pod();
        let late = pod.with_errors(std::future::ready(Ok(())), Some(near));
        let error = late.await.unwrap_err().to_string();
        assert!(
            error.starts_with("no answer from pod hostloop-a within"),
            "{error}"
        );
        let said = pod.with_errors(std::future::ready(Ok(())), Some(&b"why"[..]));
        assert_eq!(said.await.unwrap(), "why");
    }

    #[tokio::test]
    async fn lines_of_a_burst() {
        let ended = |taken| {
            format!(
                "{{\"line\":\"ended\",\"exploration\":\"exploration-1\",\"taken\":{taken},\
                 \"outcome\":\"complete\",\"why\":null}}\n"
            )
        };
        let (pod, longest) = (pod(), Duration::from_secs(60));
        let mut count = 0;
        let text = [ended(1), ended(2)].concat();
        let lines = pod.lines(Some(text.as_bytes()), longest, |_| count += 1);
        lines.await.unwrap();
        assert_eq!(count, 2);
        let wrong = pod.lines(Some(&b"no line\n"[..]), longest, |_| {});
        let error = wrong.await.unwrap_err().to_string();
        assert!(
            error.starts_with("the report of pod hostloop-a is"),
            "{error}"
        );
    }
}

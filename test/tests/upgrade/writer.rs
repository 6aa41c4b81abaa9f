//! A pod that writes numbered lines to a volume of each kind, and ends at the first error.

use std::collections::BTreeMap;
use std::fmt::Write;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::wait_for;
use serde_json::{Value, json};

use crate::site::Site;
use crate::volume::Volume;

/// The bytes of a line on a raw device: one sector.
const SECTOR: usize = 512;

/// The lines on one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Log {
    /// Their number.
    pub(crate) lines: u64,
    /// The longest time between two lines, in seconds.
    pub(crate) longest_pause: f64,
}

/// The pod.
pub(crate) struct Writer {
    pod: String,
    volumes: Vec<Volume>,
    identity: Value,
    /// The number of lines on each volume at the last look.
    seen: BTreeMap<String, u64>,
}

impl Writer {
    /// Starts the pod on a node, and waits until each volume has lines.
    pub(crate) async fn start(site: &Site, node: u32) -> Writer {
        let pod = format!("writer-{node}");
        let volumes = site.volumes(&pod, |_| json!({})).await;
        let each: Vec<_> = volumes.iter().collect();
        site.run(&pod, node, &["sh", "-c", &script(&volumes)], &each)
            .await;
        let identity = site.identity(&pod).await;
        let mut writer = Writer {
            pod,
            volumes,
            identity,
            seen: BTreeMap::new(),
        };
        wait_for("lines on each volume", PATIENCE, async || {
            let logs = writer.logs(site);
            if logs.values().all(|log| log.lines > 0) {
                Ok(())
            } else {
                Err(format!("{logs:?}"))
            }
        })
        .await;
        writer.assert_undisturbed(site).await;
        writer
    }

    /// The container is the first one, no line is missing, and there are new ones. Returns the
    /// lines of all volumes together.
    pub(crate) async fn assert_undisturbed(&mut self, site: &Site) -> Log {
        assert_eq!(
            site.identity(&self.pod).await,
            self.identity,
            "{}",
            self.pod
        );
        let logs = wait_for("new lines on each volume", PATIENCE, async || {
            let logs = self.logs(site);
            let before = |claim: &str| self.seen.get(claim).copied().unwrap_or(0);
            if logs.iter().all(|(claim, log)| log.lines > before(claim)) {
                Ok(logs)
            } else {
                Err(format!("{logs:?}, and before {:?}", self.seen))
            }
        })
        .await;
        let mut all = Log::default();
        for (claim, log) in logs {
            self.seen.insert(claim, log.lines);
            all.lines += log.lines;
            all.longest_pause = all.longest_pause.max(log.longest_pause);
        }
        all
    }

    /// The log of each volume, by its claim.
    fn logs(&self, site: &Site) -> BTreeMap<String, Log> {
        let log = |volume: &Volume| {
            let path = volume.path("log");
            // What was never written on a device is zeros.
            let text = site.sh(
                &self.pod,
                &format!("dd if={path} bs=1M count=16 2>/dev/null | tr -d '\\0' | tr -s ' '"),
            );
            let log = read(&text).unwrap_or_else(|why| panic!("{}: {why}", volume.claim));
            (volume.claim.clone(), log)
        };
        self.volumes.iter().map(log).collect()
    }
}

/// Appends a line `NUMBER UPTIME` to each volume, again and again.
fn script(volumes: &[Volume]) -> String {
    let mut writes = String::new();
    for volume in volumes {
        let path = volume.path("log");
        let written = if volume.kind.is_block {
            writeln!(
                writes,
                "printf '%-{}s\\n' \"$n $at\" | \
                 dd of={path} bs={SECTOR} seek=$((n - 1)) conv=notrunc,fsync 2>/dev/null",
                SECTOR - 1
            )
        } else {
            writeln!(writes, "echo \"$n $at\" >> {path}; sync {path}")
        };
        written.expect("text can be written");
    }
    format!(
        "set -e; n=0\nwhile :; do\nn=$((n + 1)); read -r at idle < /proc/uptime\n{writes}\
         sleep 0.02\ndone"
    )
}

/// Reads lines `NUMBER UPTIME`. The numbers count from 1.
fn read(text: &str) -> Result<Log, String> {
    let mut log = Log::default();
    let mut last = None;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let number = words.next().and_then(|word| word.parse::<u64>().ok());
        let at = words.next().and_then(|word| word.parse::<f64>().ok());
        let (Some(number), Some(at)) = (number, at) else {
            return Err(format!("after line {}: {line:?}", log.lines));
        };
        if number != log.lines + 1 {
            return Err(format!("line {number} is after line {}", log.lines));
        }
        log.lines = number;
        log.longest_pause = log.longest_pause.max(last.map_or(0.0, |last| at - last));
        last = Some(at);
    }
    Ok(log)
}

#[test]
fn a_missing_or_broken_line_is_noticed() {
    for (text, expected) in [
        (
            "",
            Ok(Log {
                lines: 0,
                longest_pause: 0.0,
            }),
        ),
        (
            "1 10.50\n2 10.75 \n3 13.25\n",
            Ok(Log {
                lines: 3,
                longest_pause: 2.5,
            }),
        ),
        ("1 1.0\n3 1.5\n", Err("line 3 is after line 1")),
        ("1 1.0\n1 1.5\n", Err("line 1 is after line 1")),
        ("2 1.0\n", Err("line 2 is after line 0")),
        ("1 1.0\n2\n", Err("after line 1: \"2\"")),
        (
            "1 1.0\n\u{fffd}\u{fffd}\n",
            Err("after line 1: \"\u{fffd}\u{fffd}\""),
        ),
    ] {
        assert_eq!(read(text), expected.map_err(str::to_owned), "{text:?}");
    }
}

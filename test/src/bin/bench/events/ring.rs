//! The cost of a ring of events: the time of an event that replaces an older one, and memory.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use hostloop_events::work::{Next, Work};
use hostloop_events::{Call, Event, Fields, LIMIT, RING, Ring, phase};

use crate::measure::median;
use crate::process;

/// Volumes of a sample, and samples.
const VOLUMES: usize = 2_000;
const SAMPLES: usize = 11;
/// Rings that are filled at once. One takes too little memory to be seen beside the process.
const RINGS: usize = 64;
const FILLS: usize = 3;
/// The steps of a volume's creation.
const STEPS: [&str; 6] = ["wait", "record", "image", "mkfs", "sync", "write back"];

/// Microseconds of an event, in a ring that is full and has no reader.
pub(super) fn microseconds() -> f64 {
    let sample = || {
        let (started, before) = (Instant::now(), count());
        (0..VOLUMES).for_each(creation);
        started.elapsed().as_secs_f64() * 1e6 / (count() - before) as f64
    };
    // The first one fills the ring.
    sample();
    median(&(0..SAMPLES).map(|_| sample()).collect::<Vec<_>>())
}

/// The events of a volume's creation, as the driver and the provisioner push them.
fn creation(number: usize) {
    let name = format!("pvc-00000000-0000-4000-8000-{number:012}");
    let id = "vol-da9dee9a4dbbe57d-01a208742b0b7298b4e21d571dc758a9";
    let request = Fields::of([
        ("name", name.as_str().into()),
        ("capacity_bytes", (1 << 30).into()),
        ("access_type", "mount".into()),
        ("fs_type", "ext4".into()),
    ]);
    let call = Call::begin("CreateVolume", &name, Some(&name), request);
    call.run(|| {
        for step in STEPS {
            let Ok(()) = phase(step, || Ok::<(), Infallible>(()));
        }
    });
    let answer = Fields::of([
        ("volume_id", id.into()),
        ("capacity_bytes", (1 << 30).into()),
    ]);
    call.end("OK", "", Duration::ZERO, answer);
    let mut work = Work::begin("provisioner", &name, Duration::from_millis(10));
    work.takes_long();
    work.end(Next::Never);
}

/// The events that this process has pushed.
fn count() -> u64 {
    RING.since(u64::MAX, 0).first
}

/// MiB of a full ring, by the growth of this process, of several samples.
pub(super) fn mebibytes() -> Vec<f64> {
    // As many events as a ring has.
    (0..VOLUMES).for_each(creation);
    (0..FILLS).map(|_| growth()).collect()
}

fn growth() -> f64 {
    let resident = || process::mib(std::process::id(), "status", "VmRSS:");
    let events = RING.since(0, usize::MAX).events;
    let before = resident();
    let rings: Vec<_> = (0..RINGS).map(|_| Ring::new(LIMIT)).collect();
    for ring in &rings {
        // One event does not fit, so the ring keeps only events that are pushed here.
        for event in events.iter().chain(&events) {
            ring.push(copied(event));
        }
    }
    let growth = (resident() - before) / RINGS as f64;
    // The next sample must not reuse this memory.
    std::mem::forget(rings);
    growth
}

/// A copy of the event with texts of its own. The events of a real call share theirs.
fn copied(event: &Event) -> Event {
    let (trace, about) = ((*event.trace).into(), (*event.about).into());
    Event {
        trace,
        about,
        ..event.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_creation_has_the_events_of_its_call_and_of_its_work() {
        let before = count();
        creation(1);
        let events = RING.since(before, usize::MAX).events;
        let names: Vec<_> = events.iter().map(|event| event.name).collect();
        let work = ["provisioner"; 3];
        let expected = [&["CreateVolume"][..], &STEPS, &["CreateVolume"], &work].concat();
        assert_eq!(names, expected);
        let traces = events
            .iter()
            .filter(|event| event.trace.ends_with("000000000001"));
        assert_eq!(traces.count(), expected.len());
    }
}

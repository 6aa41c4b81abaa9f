//! Changed blocks.

use std::path::PathBuf;

use hostloop_proto::csi;
use hostloop_proto::csi::snapshot_metadata_client::SnapshotMetadataClient;
use tonic::{Response, Status};

use crate::status::units::{bytes, count};

use crate::demo::error::{Error, Result};
use crate::demo::orchestrator::size;
use crate::demo::pod;
use crate::demo::world::World;

use super::copies::take;

/// How many ranges are shown.
const SHOWN: usize = 5;
const BLOCK: usize = 4096;

/// A second snapshot, and what differs from the first.
pub(super) fn changed(w: &mut World) -> Result<()> {
    take(w, "tuesday")?;
    let (base, target) = (
        w.snapshot("monday")?.clone(),
        w.snapshot("tuesday")?.clone(),
    );
    let request = csi::GetMetadataDeltaRequest {
        base_snapshot_id: base.snapshot_id.clone(),
        target_snapshot_id: target.snapshot_id.clone(),
        ..csi::GetMetadataDeltaRequest::default()
    };
    let answers = w.call("GetMetadataDelta", "monday → tuesday", async |channel| {
        let mut client = SnapshotMetadataClient::new(channel);
        let stream = client.get_metadata_delta(request).await?;
        collect(stream).await
    })?;
    let mut ranges = Vec::new();
    let mut messages = 0;
    for answer in answers {
        messages += 1;
        for block in answer.block_metadata {
            pod::push(&mut ranges, size(block.byte_offset), size(block.size_bytes));
        }
    }
    w.look()?;
    show(w, &ranges, size(target.size_bytes), messages);
    let differ = pod::differences(&image(w, "monday")?, &image(w, "tuesday")?, BLOCK)?;
    let total: u64 = differ.iter().map(|(_, len)| len).sum();
    w.narrator.fact(
        "differ",
        format!("{} when compared byte by byte", bytes(total)),
    );
    w.narrator.check("something has changed", total > 0);
    w.narrator.check(
        "every block that differs is in a range",
        pod::covers(&ranges, &differ),
    );
    let told: u64 = ranges.iter().map(|(_, len)| len).sum();
    let few = told <= size(target.size_bytes) / 2;
    w.narrator
        .check("a backup has less than half of it to read", few);
    Ok(())
}

/// Reads a stream to its end.
async fn collect<T>(
    stream: Response<tonic::Streaming<T>>,
) -> std::result::Result<Response<Vec<T>>, Status> {
    let mut stream = stream.into_inner();
    let mut answers = Vec::new();
    while let Some(answer) = stream.message().await? {
        answers.push(answer);
    }
    Ok(Response::new(answers))
}

fn show(w: &mut World, ranges: &[(u64, u64)], of: u64, messages: usize) {
    let total: u64 = ranges.iter().map(|(_, len)| len).sum();
    let (n, m) = (count(ranges.len(), "range"), count(messages, "message"));
    let text = format!("{} of {} in {n} ({m})", bytes(total), bytes(of));
    w.narrator.fact("delta", text);
    let mut longest: Vec<_> = ranges.to_vec();
    longest.sort_by_key(|(offset, len)| (std::cmp::Reverse(*len), *offset));
    longest.truncate(SHOWN);
    longest.sort_unstable();
    for (offset, len) in &longest {
        w.narrator
            .fact("range", format!("{:>9} at {}", bytes(*len), bytes(*offset)));
    }
    if ranges.len() > longest.len() {
        let others = count(ranges.len() - longest.len(), "shorter one");
        w.narrator.fact("range", format!("and {others}"));
    }
}

/// Where a snapshot's bytes are.
fn image(w: &World, name: &'static str) -> Result<PathBuf> {
    let id = &w.snapshot(name)?.snapshot_id;
    let survey = w.survey()?;
    let (_, contents) = survey
        .contents()
        .next()
        .ok_or(Error::NeverMade("the pool"))?;
    Ok(contents.root.join("snapshots").join(id).join("image"))
}

//! `backup` and `restore`: a volume in a directory, written as a backup tool of Kubernetes is.
//!
//! What is to be copied comes from the service of changed blocks alone ([`service`]), and the bytes from
//! a pod with the device of a claim that is restored from the snapshot ([`transfer`]). Nothing here
//! knows of pools or images. [`archive`] has the directory, [`work`] the objects in the cluster.

use std::path::PathBuf;
use std::process::ExitCode;

use hostloop_api_objects::constants::is_name;
use hostloop_report::clock::now_s;
use hostloop_terminal::color::{GOOD, paint};
use hostloop_terminal::humanize::{bytes, count};
use hostloop_terminal::terminal;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;

use super::api;
use super::cluster::Cluster;
use super::platform::interrupted;
use super::progress_line::ProgressLine;
use super::volume_objects::{bound_volume, handle};

mod archive;
mod error;
#[cfg(test)]
mod fake_service;
mod ranges;
mod restore;
mod second_content;
mod service;
mod transfer;
mod work;

pub(super) use error::Error;
pub(super) use restore::{Args as RestoreArgs, run as run_restore};

use archive::{Archive, BackupInfo, VolumeInfo};
use error::ServiceError;
use ranges::Listing;
use service::{Asker, Question, needs_full};
use work::{
    BLOCK, FILESYSTEM, Made, NewClaim, ReadySnapshot, Work, WorkArgs, cluster_of_block_volume,
};

const ABOUT: &str = "\
What it does:
  1. It takes a snapshot of the claim.
  2. It asks the driver's service of changed blocks which bytes have changed since the last backup \
     in DIR, or, for the first one, which are allocated. docs/snapshot-metadata.md says how to \
     switch it on.
  3. It restores the snapshot into a block volume, and copies these bytes from a pod with it.
  4. It deletes all that it made, and the snapshot of the last backup. Its own snapshot stays: the \
     next backup is compared with it. If it is gone and the driver can't compare with it, the next \
     one is full.

The bytes of a filesystem are read from a block volume, too. An administrator allows that by an \
annotation of the snapshot's content, which the command sets.

Example, with the account of deploy/examples/backup-client.yaml:
  kubectl hostloop backup data --to backups/data
  kubectl hostloop restore backups/data --claim data-again";

/// Arguments of `backup`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ABOUT)]
pub struct Args {
    /// The claim
    #[arg(value_name = "CLAIM")]
    pub claim: String,

    /// The directory with the backups of this claim's volume; the first backup makes it
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,

    /// Copy all that is allocated, not only what has changed
    #[arg(long)]
    pub full: bool,

    /// The ServiceAccount that asks for changed blocks, in the claim's namespace or as NAMESPACE/NAME
    #[arg(long, value_name = "NAME", default_value = "backup")]
    pub service_account: String,

    #[command(flatten)]
    pub work: WorkArgs,
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let mut progress = ProgressLine::new();
    let elsewhere = cluster_of_block_volume(cluster, &args.work);
    let work = Work::new(cluster, &args.work, "backup");
    let block_work = Work::new(&elsewhere, &args.work, "backup");
    let done = tokio::select! {
        done = back_up(args, &work, &block_work, &mut progress) => done,
        signal = interrupted() => Err(Error::Stopped(signal)),
    };
    clean_up(&[&block_work, &work], &mut progress).await;
    let done = done?;
    let kind = if done.base.is_some() {
        "what has changed"
    } else {
        "what is allocated"
    };
    terminal::print(&[format!(
        "{} {} of claim {} are in {}: {kind}, of {}",
        paint(GOOD, "✓"),
        bytes(done.bytes),
        args.claim,
        args.to.join(&done.file).display(),
        bytes(done.size)
    )])?;
    Ok(ExitCode::SUCCESS)
}

/// Deletes what is not to stay. A backup that is complete stays so if that fails.
async fn clean_up(works: &[&Work<'_>], progress: &mut ProgressLine) {
    progress.show("deleting what is not needed any more");
    let mut commands = Vec::new();
    for work in works {
        let left = work.clean_up().await;
        if !left.is_empty() {
            let left: Vec<String> = left.iter().map(ToString::to_string).collect();
            commands.push(format!(
                "kubectl -n {} delete {}",
                work.cluster.namespace,
                left.join(" ")
            ));
        }
    }
    progress.clear();
    if !commands.is_empty() {
        terminal::warn(&format!(
            "Not everything was deleted. Delete the rest: {}",
            commands.join("; ")
        ));
    }
}

/// The block volume that is copied is one of `block_work`.
async fn back_up(
    args: &Args,
    work: &Work<'_>,
    block_work: &Work<'_>,
    progress: &mut ProgressLine,
) -> Result<BackupInfo, Error> {
    let volume = volume(work, &args.claim).await?;
    let _lock = Archive::lock(&args.to)?;
    let mut archive = Archive::open(&args.to)?;
    archive.check_volume(&volume)?;
    let last = archive.last().cloned();
    let asker = Asker {
        cluster: work.cluster,
        account: &args.service_account,
        patience: args.work.timeout,
    };
    asker.until_published(progress).await?;

    let snapshot = work.snapshot(&args.claim, progress).await?;
    let base = last.as_ref().filter(|_| !args.full);
    let base = base.map(|last| last.snapshot.as_str());
    progress.show("asking for changed blocks");
    let (base, listing) = list(&asker, &snapshot, base).await?;

    let mut data = archive.begin()?;
    if !listing.ranges.is_empty() {
        let changes_mode = volume.mode == FILESYSTEM;
        let source = block_work
            .source(&snapshot, work, changes_mode, progress)
            .await?;
        block_work
            .claim(NewClaim {
                name: &block_work.name,
                mode: BLOCK,
                class: volume.storage_class.as_deref(),
                size: snapshot.size,
                snapshot: Some(&source),
            })
            .await?;
        block_work.pod(&block_work.name, BLOCK, progress).await?;
        progress.show(&format!(
            "copying {} in {}",
            bytes(listing.bytes()),
            count(listing.ranges.len(), "range")
        ));
        let pods = block_work.api();
        transfer::read_device(&pods, &block_work.name, &listing.ranges, &mut data).await?;
    }
    let (file, sha256, copied) = data.finish()?;
    let backup = BackupInfo {
        file,
        sha256,
        size: listing.size.unwrap_or(snapshot.size),
        bytes: copied,
        snapshot: snapshot.handle,
        base: base.map(str::to_owned),
        namespace: work.cluster.namespace.clone(),
        volume_snapshot: snapshot.name.clone(),
        taken: now_s(),
    };
    archive.add(&volume, backup.clone())?;
    // It is the base of the next backup, in place of the last one's.
    work.keep(&Made::Snapshot(snapshot.name));
    if let Some(last) = last
        .filter(|last| last.namespace == work.cluster.namespace && is_name(&last.volume_snapshot))
    {
        work.adopt(Made::Snapshot(last.volume_snapshot));
    }
    Ok(backup)
}

/// Lists what has changed since the base, or all that is allocated if there is no base, or the service
/// can't compare with it.
async fn list<'b>(
    asker: &Asker<'_>,
    snapshot: &ReadySnapshot,
    base: Option<&'b str>,
) -> Result<(Option<&'b str>, Listing), ServiceError> {
    let question = Question {
        namespace: &asker.cluster.namespace,
        snapshot: &snapshot.name,
        base,
    };
    match asker.list(question).await {
        Err(error) if base.is_some() && needs_full(&error) => {
            terminal::warn(&format!("A full backup, because {error}"));
            let question = Question {
                base: None,
                ..question
            };
            Ok((None, asker.list(question).await?))
        }
        listed => Ok((base, listed?)),
    }
}

async fn volume(work: &Work<'_>, name: &str) -> Result<VolumeInfo, Error> {
    let cluster = work.cluster;
    let claims: Api<PersistentVolumeClaim> = work.api();
    let Some(claim) = api::get(&claims, name).await? else {
        return Err(Error::NoClaim {
            namespace: cluster.namespace.clone(),
            claim: name.to_owned(),
        });
    };
    let Some(bound) = bound_volume(&claim) else {
        return Err(Error::Unbound(name.to_owned()));
    };
    let volumes: Api<PersistentVolume> = cluster.all();
    let Some(volume) = api::get(&volumes, bound).await? else {
        return Err(Error::Unbound(name.to_owned()));
    };
    let Some(handle) = handle(&volume, &cluster.driver_name) else {
        return Err(Error::OtherDriver {
            claim: name.to_owned(),
            driver: cluster.driver_name.clone(),
        });
    };
    let spec = claim.spec.clone().unwrap_or_default();
    Ok(VolumeInfo {
        driver: cluster.driver_name.clone(),
        handle: handle.to_owned(),
        claim: format!("{}/{name}", cluster.namespace),
        mode: spec.volume_mode.unwrap_or_else(|| FILESYSTEM.to_owned()),
        storage_class: spec.storage_class_name,
    })
}

#[cfg(test)]
mod tests;

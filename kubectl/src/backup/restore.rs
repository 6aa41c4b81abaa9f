//! `restore`: a new claim with the last state of a backup.
//!
//! The bytes go to the device of a new block volume. A filesystem comes from a snapshot of that volume:
//! an administrator allows it, because the kernel trusts a filesystem that it mounts.

use std::path::PathBuf;
use std::process::ExitCode;

use hostloop_terminal::color::{GOOD, paint};
use hostloop_terminal::humanize::bytes;
use hostloop_terminal::terminal;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;

use super::archive::{Archive, BackupInfo};
use super::error::Error;
use super::transfer;
use super::work::{BLOCK, FILESYSTEM, Made, NewClaim, Work, WorkArgs, cluster_of_block_volume};
use crate::api;
use crate::cluster::Cluster;
use crate::platform::interrupted;
use crate::progress_line::ProgressLine;

/// Arguments of `restore`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "It checks the checksums of all files first. The claim has the size and the volume \
                  mode of the last backup. A filesystem is restored by way of a block volume and its \
                  snapshot, and the command annotates its content, which an administrator may."
)]
pub struct Args {
    /// The directory with the backups
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// The claim to make
    #[arg(long, value_name = "NAME")]
    pub claim: String,

    /// Its StorageClass [default: that of the claim that was backed up]
    #[arg(long, value_name = "NAME")]
    pub class: Option<String>,

    #[command(flatten)]
    pub work: WorkArgs,
}

pub(crate) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let mut progress = ProgressLine::new();
    let elsewhere = cluster_of_block_volume(cluster, &args.work);
    let work = Work::new(cluster, &args.work, "restore");
    let block_work = Work::new(&elsewhere, &args.work, "restore");
    let done = tokio::select! {
        done = restore(args, &work, &block_work, &mut progress) => done,
        signal = interrupted() => Err(Error::Stopped(signal)),
    };
    super::clean_up(&[&work, &block_work], &mut progress).await;
    let written = done?;
    terminal::print(&[format!(
        "{} claim {} has the last state of {}: {} were written",
        paint(GOOD, "✓"),
        args.claim,
        args.dir.display(),
        bytes(written)
    )])?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the claim. The block volume of a filesystem is one of `block_work`. Returns how many bytes were
/// written.
async fn restore(
    args: &Args,
    work: &Work<'_>,
    block_work: &Work<'_>,
    progress: &mut ProgressLine,
) -> Result<u64, Error> {
    let archive = Archive::open(&args.dir)?;
    let (volume, chain) = archive.chain()?;
    progress.show("checking the files of the backup");
    for backup in chain {
        archive.verify(backup)?;
    }
    let claims: Api<PersistentVolumeClaim> = work.api();
    if api::get(&claims, &args.claim).await?.is_some() {
        return Err(Error::ClaimExists(args.claim.clone()));
    }
    let class = args.class.as_deref().or(volume.storage_class.as_deref());
    // A volume may have grown between two backups.
    let size = chain.iter().map(|one| one.size).max().unwrap_or_default();
    let is_block = volume.mode == BLOCK;
    let (writer, device) = if is_block {
        (work, &args.claim)
    } else {
        (block_work, &block_work.name)
    };
    writer
        .claim(NewClaim {
            name: device,
            mode: BLOCK,
            class,
            size,
            snapshot: None,
        })
        .await?;
    writer.pod(device, BLOCK, progress).await?;
    write(writer, &archive, chain, progress).await?;
    writer.end_pod().await?;
    if !is_block {
        let snapshot = block_work.snapshot(device, progress).await?;
        let source = work.source(&snapshot, block_work, true, progress).await?;
        work.claim(NewClaim {
            name: &args.claim,
            mode: FILESYSTEM,
            class,
            size,
            snapshot: Some(&source),
        })
        .await?;
        // The volume comes with its first pod, and the snapshot has to be there until then.
        work.pod(&args.claim, FILESYSTEM, progress).await?;
        work.end_pod().await?;
    }
    work.keep(&Made::Claim(args.claim.clone()));
    Ok(chain.iter().map(|one| one.bytes).sum())
}

/// Writes the backups to the device, the full one first.
async fn write(
    work: &Work<'_>,
    archive: &Archive,
    chain: &[BackupInfo],
    progress: &mut ProgressLine,
) -> Result<(), Error> {
    let pods = work.api();
    for backup in chain {
        progress.show(&format!(
            "writing {} of {}",
            bytes(backup.bytes),
            backup.file
        ));
        let mut data = archive.read(backup)?;
        transfer::write_device(&pods, &work.name, &mut data).await?;
    }
    Ok(())
}

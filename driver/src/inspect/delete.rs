//! `hostloop delete`: deletes volumes and snapshots that no object of a cluster has any more.
//!
//! The running driver deletes them, so its locks and its checks of uses hold.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use hostloop_controllers::csi::{Csi, Failure};
use hostloop_proto::csi;
use hostloop_terminal::terminal;
use tonic::Code;

use super::block_on;
use crate::cli::DeleteArgs;
use crate::storage::{SnapshotId, VolumeId};

/// How long the driver may take for one call.
const DEADLINE: Duration = Duration::from_secs(60);

/// Why an object is not deleted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} is not the ID of a volume (vol-…) or of a snapshot (snap-…)")]
    Id(String),
    #[error("{0} does not exist on this node")]
    Missing(String),
    /// The driver refuses, or does not answer.
    #[error("{id} is not deleted: {why}")]
    Call { id: String, why: Failure },
    /// No runtime for the calls.
    #[error("starting threads: {0}")]
    Threads(#[source] io::Error),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// Deletes the objects one after another, and stops at the first failure. Blocks.
pub fn run(args: &DeleteArgs) -> Result<ExitCode, Error> {
    block_on(delete_all(args)).map_err(Error::Threads)??;
    Ok(ExitCode::SUCCESS)
}

async fn delete_all(args: &DeleteArgs) -> Result<(), Error> {
    let csi = Csi::at_socket(&args.endpoint);
    for id in &args.ids {
        delete(&csi, id).await?;
        terminal::print(&[format!("{id} deleted")])?;
    }
    Ok(())
}

async fn delete(csi: &Csi, id: &str) -> Result<(), Error> {
    if id.parse::<VolumeId>().is_ok() {
        volume(csi, id).await
    } else if id.parse::<SnapshotId>().is_ok() {
        snapshot(csi, id).await
    } else {
        Err(Error::Id(id.to_owned()))
    }
}

async fn volume(csi: &Csi, id: &str) -> Result<(), Error> {
    let request = csi::ControllerGetVolumeRequest {
        volume_id: id.to_owned(),
    };
    must_exist(id, csi.controller_get_volume(request, DEADLINE).await)?;
    let request = csi::DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    };
    csi.delete_volume(request, DEADLINE)
        .await
        .map_err(|why| failed(id, why))
        .map(drop)
}

async fn snapshot(csi: &Csi, id: &str) -> Result<(), Error> {
    let request = csi::GetSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    must_exist(id, csi.get_snapshot(request, DEADLINE).await)?;
    let request = csi::DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    csi.delete_snapshot(request, DEADLINE)
        .await
        .map_err(|why| failed(id, why))
        .map(drop)
}

/// Fails for an object that does not exist: its deletion would succeed. One with an unreadable
/// record is INTERNAL, and can be deleted.
fn must_exist<T>(id: &str, found: Result<T, Failure>) -> Result<(), Error> {
    match found {
        Err(why) if why.code() == Code::NotFound => Err(Error::Missing(id.to_owned())),
        Err(why) if why.code() != Code::Internal => Err(failed(id, why)),
        _ => Ok(()),
    }
}

fn failed(id: &str, why: Failure) -> Error {
    Error::Call {
        id: id.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;

    use super::*;
    use crate::storage::PoolId;
    use crate::testkit::{Configs, Site};

    #[tokio::test]
    async fn deletes_over_a_socket() {
        let site = Site::fake(&["a"]);
        let volume = site.make("free");
        let endpoint = site.root().join("csi.sock");
        let connections = UnixListenerStream::new(UnixListener::bind(&endpoint).unwrap());
        let server = Configs::default().server(site.pools());
        tokio::spawn(async move { server.serve(connections, std::future::pending()).await });
        let args = DeleteArgs {
            endpoint,
            ids: vec![volume.id.to_string()],
        };
        // On a thread without a runtime, like the program's.
        let (ended, end) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || ended.send(run(&args)));
        assert_eq!(end.await.unwrap().unwrap(), ExitCode::SUCCESS);
        assert_eq!(site.pools().volumes().len(), 0);
    }

    #[tokio::test]
    async fn deletes_what_is_not_in_use() {
        let mut site = Site::fake(&["a"]);
        let [free, used, broken] = ["free", "used", "broken"].map(|name| site.make(name));
        let snapshot = site.snapshot(&free, "snapshot").id.to_string();
        site.close();
        std::fs::write(site.path(format!("volumes/{}/volume.json", broken.id)), "{").unwrap();
        site.open();
        let (device, _) = site.mounted(&used, "at");
        let csi = Csi::within(Configs::default().server(site.pools()).routes());
        for id in [free.id.to_string(), broken.id.to_string(), snapshot] {
            delete(&csi, &id).await.unwrap();
            let again = delete(&csi, &id).await;
            assert!(matches!(&again, Err(Error::Missing(_))), "{again:?}");
        }
        let refused = delete(&csi, &used.id.to_string())
            .await
            .unwrap_err()
            .to_string();
        let expected = format!("{} is not deleted", used.id);
        assert!(
            refused.contains(&expected) && refused.contains("mounted at"),
            "{refused}"
        );
        drop(device);
        let other = VolumeId::generate(PoolId::generate()).to_string();
        assert!(matches!(
            delete(&csi, &other).await,
            Err(Error::Call { .. })
        ));
        assert!(matches!(delete(&csi, "notes").await, Err(Error::Id(_))));
        assert_eq!(site.pools().volumes().len(), 1);
    }
}

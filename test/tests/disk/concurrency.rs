//! Many clients at once. Calls with one name or for one volume have one result, calls for different
//! volumes run in parallel, and no call waits for another volume's copy.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures::future::join_all;
use hostloop_proto::csi;
use hostloop_test::PATIENCE;
use hostloop_test::client::{Call, Csi, new_volume};
use hostloop_test::dice::Dice;
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::front::wait::until;
use hostloop_test::leaks::{Leaks, files_in, mount_points, mountinfo};
use hostloop_test::loop_devices;
use hostloop_test::machine;
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;
use tonic::{Code, Status};

use hostloop_test::requests::{self, attach, delete, detach, id_of};

/// The number of clients that call at the same moment.
const CLIENTS: usize = 24;

/// A pool, a driver on it, and the paths of a kubelet.
struct Site {
    driver: Driver,
    leaks: Leaks,
    pool: PoolFixture,
    scratch: Scratch,
}

impl Site {
    fn new(kind: PoolKind) -> Site {
        Site::disturbed(kind, None)
    }

    /// Starts a driver with these fail points.
    fn disturbed(kind: PoolKind, failpoints: Option<&str>) -> Site {
        machine::require();
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, kind, 16 * GIB);
        let mut spec = DriverSpec::new(&scratch, &[&pool]);
        if let Some(failpoints) = failpoints {
            spec = spec.failpoints(failpoints);
        }
        let driver = spec.start();
        let leaks = Leaks::before(&scratch, &[&pool], &driver);
        Site {
            driver,
            leaks,
            pool,
            scratch,
        }
    }

    fn staging(&self, name: &str) -> PathBuf {
        self.scratch.dir(&format!("staging/{name}"))
    }

    fn target(&self, name: &str) -> PathBuf {
        self.scratch.dir(&format!("pods/{name}")).join("mount")
    }

    /// Clients, each with its own connection.
    async fn clients(&self, number: usize) -> Vec<Csi> {
        join_all((0..number).map(|_| self.driver.csi())).await
    }

    fn close(self) {
        self.leaks.assert_none(&[&self.pool], &self.driver);
        self.driver.stop();
    }

    fn stage(&self, name: &str, id: &str) -> csi::NodeStageVolumeRequest {
        requests::stage(id, self.staging(name))
    }

    fn publish(&self, name: &str, id: &str) -> csi::NodePublishVolumeRequest {
        requests::publish(id, self.staging(name), self.target(name))
    }

    fn unpublish(&self, name: &str, id: &str) -> csi::NodeUnpublishVolumeRequest {
        requests::unpublish(id, self.target(name))
    }

    fn unstage(&self, name: &str, id: &str) -> csi::NodeUnstageVolumeRequest {
        requests::unstage(id, self.staging(name))
    }
}

/// All clients send the same request at once. Each call ends with OK or ABORTED, and at least one
/// with OK.
async fn all_at_once<C: Call + Clone>(clients: &[Csi], request: C) -> Vec<C::Answer> {
    let calls = clients.iter().map(|client| client.call(request.clone()));
    let (mut answers, mut aborted) = (Vec::new(), 0);
    for outcome in join_all(calls).await {
        match outcome {
            Ok(answer) => answers.push(answer),
            Err(status) if status.code() == Code::Aborted => aborted += 1,
            Err(status) => panic!("{}: {status:?}", C::NAME),
        }
    }
    println!("{}: {} OK, {aborted} aborted", C::NAME, answers.len());
    assert!(!answers.is_empty(), "{}: no call was answered OK", C::NAME);
    answers
}

/// Repeats a call that is aborted, as an orchestrator does.
async fn patiently<C: Call + Clone>(csi: &Csi, request: C) -> C::Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match csi.call(request.clone()).await {
            Ok(answer) => return answer,
            Err(status) if status.code() == Code::Aborted && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(status) => panic!("{}: {status:?}", C::NAME),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_name_makes_one_volume() {
    let site = Site::new(PoolKind::Ext4);
    let clients = site.clients(CLIENTS).await;
    for round in 0..8 {
        let request = new_volume(&format!("pvc-{round}"), 32 * MIB);
        let answers = all_at_once(&clients, request.clone()).await;
        let mut ids: BTreeSet<_> = answers.into_iter().map(id_of).collect();
        ids.insert(id_of(patiently(&clients[0], request).await));
        assert_eq!(ids.len(), 1, "one name, one volume");
        assert_eq!(clients[0].volume_ids().await, Vec::from_iter(ids.clone()));
        all_at_once(&clients, delete(ids.first().expect("there is one"))).await;
    }
    site.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_name_with_another_size_makes_one_volume() {
    let site = Site::new(PoolKind::Xfs);
    let clients = site.clients(CLIENTS).await;
    let calls = clients.iter().enumerate().map(|(n, client)| {
        let mib = if n % 2 == 0 { 32 } else { 64 };
        client.call(new_volume("pvc-contended", mib * MIB))
    });
    let mut ids = BTreeSet::new();
    for outcome in join_all(calls).await {
        match outcome {
            Ok(answer) => drop(ids.insert(id_of(answer))),
            Err(status) => {
                let expected = [Code::Aborted, Code::AlreadyExists];
                assert!(expected.contains(&status.code()), "{status:?}");
            }
        }
    }
    assert_eq!(ids.len(), 1, "one name, one volume");
    assert_eq!(clients[0].volume_ids().await.len(), 1);
    patiently(&clients[0], delete(ids.first().expect("there is one"))).await;
    site.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_volume_is_staged_and_published_once() {
    let site = Site::new(PoolKind::Xfs);
    let clients = site.clients(CLIENTS).await;
    let csi = &clients[0];
    let id = id_of(csi.ok(new_volume("pvc-one", 64 * MIB)).await);
    all_at_once(&clients, attach(&id)).await;
    let devices = || loop_devices::beneath(site.scratch.path()).len();
    let before = devices();
    all_at_once(&clients, site.stage("one", &id)).await;
    patiently(csi, site.stage("one", &id)).await;
    assert_eq!(devices(), before + 1, "one loop device");
    all_at_once(&clients, site.publish("one", &id)).await;
    patiently(csi, site.publish("one", &id)).await;
    let table = mountinfo("self");
    for path in [site.target("one"), site.staging("one")] {
        assert_eq!(mount_points(&table, &path).len(), 1, "mounts at {path:?}");
    }
    let answers = all_at_once(&clients, requests::snapshot("snapshot-one", &id)).await;
    let ids: BTreeSet<_> = answers
        .into_iter()
        .filter_map(|a| Some(a.snapshot?.snapshot_id))
        .collect();
    assert_eq!(ids.len(), 1, "one name, one snapshot");
    for id in ids {
        all_at_once(&clients, requests::delete_snapshot(&id)).await;
    }
    all_at_once(&clients, site.unpublish("one", &id)).await;
    all_at_once(&clients, site.unstage("one", &id)).await;
    all_at_once(&clients, detach(&id)).await;
    all_at_once(&clients, delete(&id)).await;
    patiently(csi, delete(&id)).await;
    site.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn different_volumes_never_wait_for_abort() {
    let site = Site::new(PoolKind::Xfs);
    let clients = site.clients(16).await;
    let lives = clients
        .iter()
        .enumerate()
        .map(|(n, csi)| life(&site, csi, format!("v{n}")));
    for outcome in join_all(lives).await {
        outcome.expect("a call for one volume never aborts that of another");
    }
    assert_eq!(clients[0].volume_ids().await, Vec::<String>::new());
    site.close();
}

fn volume(name: &str) -> csi::CreateVolumeRequest {
    new_volume(&format!("pvc-{name}"), 32 * MIB)
}

/// A volume's whole life, without retries.
async fn life(site: &Site, csi: &Csi, name: String) -> Result<(), Status> {
    let id = id_of(csi.call(volume(&name)).await?);
    csi.call(attach(&id)).await?;
    csi.call(site.stage(&name, &id)).await?;
    csi.call(site.publish(&name, &id)).await?;
    std::fs::write(site.target(&name).join("data"), &name).expect("the volume takes a write");
    csi.call(site.unpublish(&name, &id)).await?;
    csi.call(site.unstage(&name, &id)).await?;
    csi.call(detach(&id)).await?;
    csi.call(delete(&id)).await.map(drop)
}

/// All clients send calls about the same volumes, in random orders from fixed seeds. Each call is
/// answered, and nothing is left in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn disorder_ends_in_order() {
    let site = Site::new(PoolKind::Btrfs);
    let clients = site.clients(8).await;
    let names = ["a", "b", "c"];
    let workers = clients
        .iter()
        .enumerate()
        .map(|(seed, csi)| disorder(&site, csi, seed, &names));
    let internal: usize = join_all(workers).await.into_iter().sum();
    assert_eq!(internal, 0, "calls that end in an internal error");
    let csi = &clients[0];
    for name in names {
        let id = id_of(patiently(csi, volume(name)).await);
        patiently(csi, site.unpublish(name, &id)).await;
        patiently(csi, site.unstage(name, &id)).await;
        patiently(csi, detach(&id)).await;
        patiently(csi, delete(&id)).await;
    }
    assert_eq!(csi.volume_ids().await, Vec::<String>::new());
    site.close();
}

/// True for an error that concurrent requests cannot explain.
fn is_internal(name: &str, status: &Status) -> bool {
    let internal = [Code::Internal, Code::Unknown, Code::DataLoss].contains(&status.code());
    if internal {
        eprintln!("{name}: {status:?}");
    }
    internal
}

/// Returns how many calls were answered INTERNAL, UNKNOWN or DATA_LOSS.
async fn disorder(site: &Site, csi: &Csi, seed: usize, names: &[&str]) -> usize {
    let dice = Dice::new(seed as u64);
    let mut internal = 0;
    for _ in 0..60 {
        let name = names[dice.below(names.len() as u64) as usize];
        let outcome = random_call(site, csi, name, dice.below(7)).await;
        internal += usize::from(outcome.is_err_and(|status| is_internal(name, &status)));
    }
    internal
}

async fn random_call(site: &Site, csi: &Csi, name: &str, number: u64) -> Result<(), Status> {
    let id = id_of(csi.call(volume(name)).await?);
    match number {
        0 => csi.call(attach(&id)).await.map(drop),
        1 => csi.call(site.stage(name, &id)).await.map(drop),
        2 => csi.call(site.publish(name, &id)).await.map(drop),
        3 => csi.call(site.unpublish(name, &id)).await.map(drop),
        4 => csi.call(site.unstage(name, &id)).await.map(drop),
        5 => csi.call(detach(&id)).await.map(drop),
        _ => csi.call(delete(&id)).await.map(drop),
    }
}

fn clone_of(id: &str, name: &str, bytes: u64) -> csi::CreateVolumeRequest {
    let volume_content_source = requests::of_volume(id);
    csi::CreateVolumeRequest {
        volume_content_source,
        ..new_volume(name, bytes)
    }
}

/// Stops a copy just before its first byte, for longer than a client waits for any answer.
const COPY_HANGS: &str = "file.copy=sleep(3600000)";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_waits_for_a_copy_elsewhere() {
    let mut site = Site::disturbed(PoolKind::Ext4, Some(COPY_HANGS));
    let csi = site.driver.csi().await;
    let source = id_of(csi.ok(new_volume("pvc-source", 64 * MIB)).await);
    let copier = site.driver.csi().await;
    let request = clone_of(&source, "pvc-copy", 64 * MIB);
    let copy = tokio::spawn({
        let request = request.clone();
        async move { copier.call(request).await }
    });
    // The copy's image gets its length just before the first byte.
    let begun = || async { (images(&site.pool, 64 * MIB) == 2).then_some(()) };
    until(PATIENCE, begun).await.expect("the copy begins");
    life(&site, &csi, "other".to_owned())
        .await
        .expect("another volume goes its way");
    drop(csi);
    assert!(!copy.is_finished(), "the copy hangs");

    // The copy ends only with the driver.
    site.driver.kill();
    copy.await
        .expect("the call returns")
        .expect_err("the copy was not finished");
    site.driver = DriverSpec::new(&site.scratch, &[&site.pool]).start();
    let csi = site.driver.csi().await;
    let copied = id_of(csi.ok(request).await);
    for id in [copied, source] {
        csi.ok(delete(&id)).await;
    }
    site.close();
}

/// The number of images in a pool that have this length.
fn images(pool: &PoolFixture, bytes: u64) -> usize {
    let images = files_in(pool.root())
        .into_iter()
        .map(|entry| entry.join("image"));
    images
        .filter(|image| image.metadata().is_ok_and(|found| found.len() == bytes))
        .count()
}

//! Many copies that hang, and the calls of others beside them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use parking_lot::{Condvar, Mutex};
use rstest::rstest;
use tokio::task::JoinSet;

use super::*;
use crate::grpc::permits::Permits;
use crate::grpc::pool_threads::{CLONES, COPIES, DELETIONS};
use crate::kernel::wanted;
use crate::storage::NewVolume;
use crate::testkit::PATIENCE;

/// A service that hangs in some calls until the gate opens or they are not wanted, and answers all
/// else at once.
#[derive(Default)]
struct Service {
    /// The number of calls that may end.
    ends: Mutex<usize>,
    opened: Condvar,
    begun: Mutex<Vec<String>>,
    answered: AtomicUsize,
}

impl<C> Refuses<C> for Service {}

impl Service {
    fn hang<C: Call, R: Default>(&self, request: C) -> Result<R, Status> {
        self.begun.lock().push(request.about().to_owned());
        let copy = tempfile::tempfile().unwrap();
        let mut ends = self.ends.lock();
        while *ends == 0 {
            if wanted::check(&copy).is_err() {
                return Err(Status::aborted("it is not wanted"));
            }
            self.opened.wait_for(&mut ends, Duration::from_millis(10));
        }
        *ends -= 1;
        Ok(R::default())
    }

    fn end_one(&self) {
        *self.ends.lock() += 1;
        self.opened.notify_one();
    }

    fn open(&self) {
        *self.ends.lock() = usize::MAX;
        self.opened.notify_all();
    }

    fn answer<C: Call, R: Default>(&self, _: C) -> Result<R, Status> {
        self.answered.fetch_add(1, Ordering::SeqCst);
        Ok(R::default())
    }
}

/// How many of so many threads the calls of one namespace hold, if they ask alone.
fn of_one_namespace(threads: usize) -> usize {
    let (permits, mut held) = (Permits::new(threads, "calls"), Vec::new());
    while let Some(Some(permit)) = permits.acquire("one").now_or_never() {
        held.push(permit);
    }
    held.len()
}

/// Opening the gate ends the calls also after a failure.
impl Drop for Rig {
    fn drop(&mut self) {
        self.service.open();
    }
}

struct Rig {
    site: Site,
    /// The work of the calls that hang, in the site's pool.
    work: Work,
    dispatcher: Dispatcher,
    service: Arc<Service>,
    hanging: JoinSet<Result<(), Status>>,
}

impl Rig {
    /// A pool in which copies are this work, if it is one of copies.
    fn new(work: Work) -> Rig {
        let mut site: Site = Site::new(&["a=DIR/a"]);
        site.kernel.set_reflinks(work == Work::Clone);
        site.open();
        let dispatcher = Dispatcher {
            locks: OperationLocks::new(),
            pool_threads: PoolThreads::default(),
            pools: site.pools().clone(),
            calls: Arc::new(Calls::new("test")),
            faults: None,
        };
        Rig {
            site,
            work,
            dispatcher,
            service: Arc::default(),
            hanging: JoinSet::new(),
        }
    }

    /// Begins copies of a snapshot for claims of a namespace.
    fn copy(&mut self, snapshot: &str, namespace: &str, count: usize) {
        for n in 0..count {
            let from = SnapshotSource {
                snapshot_id: snapshot.to_owned(),
            };
            let source = csi::VolumeContentSource {
                r#type: Some(Type::Snapshot(from)),
            };
            let key = "csi.storage.k8s.io/pvc/namespace".to_owned();
            let request = csi::CreateVolumeRequest {
                name: format!("{namespace}-{n}"),
                parameters: BTreeMap::from([(key, namespace.to_owned())]),
                volume_content_source: Some(source),
                ..Default::default()
            };
            self.create(request);
        }
    }

    /// Begins a copy.
    fn create(&mut self, request: csi::CreateVolumeRequest) {
        let (dispatcher, service) = (self.dispatcher.clone(), self.service.clone());
        self.hanging.spawn(async move {
            let call = dispatcher.answer(&service, Request::new(request), Service::hang);
            let made: Result<Response<csi::CreateVolumeResponse>, Status> = call.await;
            made.map(drop)
        });
    }

    /// Begins the deletion of a new volume of a namespace, and returns its ID.
    fn delete(&mut self, namespace: &str, number: usize) -> String {
        let key = "csi.storage.k8s.io/pvc/namespace".to_owned();
        let volume = self.site.create(NewVolume {
            parameters: BTreeMap::from([(key, namespace.to_owned())]),
            ..new(&format!("{namespace}-{number}"))
        });
        let volume_id = volume.id.to_string();
        let request = csi::DeleteVolumeRequest {
            volume_id: volume_id.clone(),
            ..Default::default()
        };
        let (dispatcher, service) = (self.dispatcher.clone(), self.service.clone());
        self.hanging.spawn(async move {
            let call = dispatcher.answer(&service, Request::new(request), Service::hang);
            let deleted: Result<Response<csi::DeleteVolumeResponse>, Status> = call.await;
            deleted.map(drop)
        });
        volume_id
    }

    /// Waits until as many of the calls that hang run and wait.
    async fn until(&self, running: usize, waiting: usize) {
        let lane = Lane::of_class(&self.dispatcher.pools, &BTreeMap::new(), None);
        let threads = self.dispatcher.pool_threads.of(&lane, self.work);
        let there = async {
            while (self.service.begun.lock().len(), threads.waiting()) != (running, waiting) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, there)
            .await
            .expect("the calls run and wait");
    }

    async fn call<C: Call, R>(&self, request: C)
    where
        R: EventFields + Clone + Default + Send + Sync + 'static,
    {
        let call = self.dispatcher.answer::<C, Service, R, Status>(
            &self.service,
            Request::new(request),
            Service::answer,
        );
        let answered = tokio::time::timeout(PATIENCE, call).await;
        answered
            .unwrap_or_else(|_| panic!("{} waits for a copy", C::METHOD))
            .unwrap();
    }

    async fn finish(mut self) -> Vec<String> {
        self.service.open();
        while let Some(call) = self.hanging.join_next().await {
            call.unwrap().unwrap();
        }
        std::mem::take(&mut *self.service.begun.lock())
    }
}

#[rstest]
#[case::of_bytes(Work::Copy, COPIES)]
#[case::that_share_blocks(Work::Clone, CLONES)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_waits_for_copies_of_others(#[case] work: Work, #[case] threads: usize) {
    let threads = of_one_namespace(threads);
    let mut rig = Rig::new(work);
    let volume = rig.site.make("one");
    let snapshot = rig.site.snapshot(&volume, "snap").id.to_string();
    rig.copy(&snapshot, "a", 40);
    rig.until(threads, 40 - threads).await;

    let id = volume.id.to_string();
    macro_rules! call {
        ($($request:ident -> $response:ident)+) => {
            $(
                let request = csi::$request { volume_id: id.clone(), ..Default::default() };
                rig.call::<_, csi::$response>(request).await;
            )+
        };
    }
    let other = csi::CreateVolumeRequest {
        name: "other".into(),
        ..Default::default()
    };
    rig.call::<_, csi::CreateVolumeResponse>(other).await;
    call! {
        ControllerPublishVolumeRequest -> ControllerPublishVolumeResponse
        NodeStageVolumeRequest -> NodeStageVolumeResponse
        NodePublishVolumeRequest -> NodePublishVolumeResponse
        NodeExpandVolumeRequest -> NodeExpandVolumeResponse
        NodeUnpublishVolumeRequest -> NodeUnpublishVolumeResponse
        NodeUnstageVolumeRequest -> NodeUnstageVolumeResponse
        ControllerUnpublishVolumeRequest -> ControllerUnpublishVolumeResponse
        DeleteVolumeRequest -> DeleteVolumeResponse
    }
    let delete = csi::DeleteSnapshotRequest {
        snapshot_id: rig.site.snapshot(&volume, "other").id.to_string(),
        ..Default::default()
    };
    rig.call::<_, csi::DeleteSnapshotResponse>(delete).await;
    let begun = rig.service.begun.lock().len();
    assert_eq!(
        (begun, rig.service.answered.load(Ordering::SeqCst)),
        (threads, 10)
    );
    assert_eq!(rig.finish().await.len(), 40);
}

/// A volume at rest that is copied without a freeze: only its record changes beside that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_detached_while_it_is_copied() {
    let mut rig = Rig::new(Work::Copy);
    let volume = rig.site.make("one").id.to_string();
    let from = VolumeSource {
        volume_id: volume.clone(),
    };
    let source = csi::VolumeContentSource {
        r#type: Some(Type::Volume(from)),
    };
    let request = csi::CreateVolumeRequest {
        name: "clone".into(),
        volume_content_source: Some(source),
        ..Default::default()
    };
    rig.create(request);
    rig.until(1, 0).await;
    let detach = csi::ControllerUnpublishVolumeRequest {
        volume_id: volume,
        ..Default::default()
    };
    rig.call::<_, csi::ControllerUnpublishVolumeResponse>(detach)
        .await;
    rig.finish().await;
}

#[rstest]
#[case::with_copies_of_bytes(Work::Copy, COPIES)]
#[case::with_clones(Work::Clone, CLONES)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_take_turns(#[case] work: Work, #[case] threads: usize) {
    let of_many = of_one_namespace(threads);
    assert_eq!(of_many, threads - 1, "a thread is left for another one");
    let mut rig = Rig::new(work);
    let volume = rig.site.make("one");
    let snapshot = rig.site.snapshot(&volume, "snap").id.to_string();
    rig.copy(&snapshot, "many", 20);
    rig.until(of_many, 20 - of_many).await;
    // It begins at once, although those of the other namespace came first.
    rig.copy(&snapshot, "one", 1);
    rig.until(threads, 20 - of_many).await;
    // That of a third one has the next turn, whichever copy ends.
    rig.copy(&snapshot, "late", 1);
    rig.until(threads, 21 - of_many).await;
    rig.service.end_one();
    rig.until(threads + 1, 20 - of_many).await;
    let begun = rig.finish().await;
    assert_eq!(begun[of_many..=threads], ["one-0", "late-0"]);
}

/// The request has an ID alone, and the volume's record the namespace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_take_turns_with_calls_that_name_an_id() {
    let of_many = of_one_namespace(DELETIONS);
    let mut rig = Rig::new(Work::Delete);
    for number in 0..20 {
        rig.delete("many", number);
    }
    rig.until(of_many, 20 - of_many).await;
    // The rest of the threads, and one more deletion that waits.
    let others: Vec<String> = (of_many..=DELETIONS)
        .map(|number| rig.delete(&format!("one-{number}"), 0))
        .collect();
    rig.until(DELETIONS, 21 - of_many).await;
    rig.service.end_one();
    rig.until(DELETIONS + 1, 20 - of_many).await;
    let begun = rig.finish().await;
    let found = BTreeSet::from_iter(&begun[of_many..=DELETIONS]);
    assert_eq!(found, BTreeSet::from_iter(&others), "of {begun:?}");
}

/// A retry begins them again.
#[rstest]
#[case::of_bytes(Work::Copy, COPIES)]
#[case::that_share_blocks(Work::Clone, CLONES)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_end_with_the_process(#[case] work: Work, #[case] threads: usize) {
    let threads = of_one_namespace(threads);
    let mut rig = Rig::new(work);
    let volume = rig.site.make("one");
    let snapshot = rig.site.snapshot(&volume, "snap").id.to_string();
    rig.copy(&snapshot, "a", threads);
    rig.until(threads, 0).await;
    rig.dispatcher.locks.close();
    for _ in 0..threads {
        let ended = tokio::time::timeout(PATIENCE, rig.hanging.join_next()).await;
        let copied = ended.expect("it ends").unwrap().unwrap();
        assert_eq!(copied.unwrap_err().code(), tonic::Code::Aborted);
    }
}

/// So does an allocation, which may take as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocations_end_with_the_process() {
    let mut rig = Rig::new(Work::Allocate);
    let request = csi::CreateVolumeRequest {
        name: "thick".into(),
        parameters: BTreeMap::from([("provisioning".to_owned(), "thick".to_owned())]),
        ..Default::default()
    };
    rig.create(request);
    rig.until(1, 0).await;
    rig.dispatcher.locks.close();
    let ended = tokio::time::timeout(PATIENCE, rig.hanging.join_next()).await;
    let created = ended.expect("it ends").unwrap().unwrap();
    assert_eq!(created.unwrap_err().code(), tonic::Code::Aborted);
}

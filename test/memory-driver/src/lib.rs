//! A CSI driver in memory, for tests of everything that calls a CSI driver.
//!
//! It shares only the protocol with hostloop, so controllers that work with both work with drivers
//! in general. [`Handlers`] answer single RPCs as a test says. [`MemoryDriver`] is a whole driver
//! behind a socket: [`Options`] set its capabilities and behaviour, and can change while it serves;
//! [`MemoryDriver::script`] sets failures and their time; [`Call`]s record the requests; and
//! [`Left`] must be empty at the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

mod calls;
mod options;
mod rpc;
mod script;
mod shared;
mod state;

pub use calls::Call;
pub use options::{Capabilities, Options, Segments};
pub use rpc::{Handlers, Rpc};
pub use script::Step;
pub use state::{Group, Left, Publication, Snapshot, Volume};

use shared::{Door, Shared};

/// A driver that serves until it is dropped. It has its own threads, so tests of any kind can use
/// it.
pub struct MemoryDriver {
    shared: Arc<Shared>,
    socket: PathBuf,
    /// Additional sockets, numbered from 1.
    others: Vec<PathBuf>,
    /// None while the driver is away.
    runtime: Option<Runtime>,
}

impl MemoryDriver {
    /// Serves at this socket. An existing file at the path is removed.
    pub fn start(socket: impl Into<PathBuf>, options: Options) -> MemoryDriver {
        let mut driver = MemoryDriver {
            shared: Arc::new(Shared::new(options)),
            socket: socket.into(),
            others: Vec::new(),
            runtime: None,
        };
        driver.resume();
        driver
    }

    /// Serves at an additional socket and returns its address. [`Call::door`] is the socket of a
    /// call.
    pub fn also_at(&mut self, socket: impl Into<PathBuf>) -> String {
        let socket = socket.into();
        let address = format!("unix://{}", socket.display());
        self.others.push(socket);
        if let Some(runtime) = &self.runtime {
            self.open(runtime, self.others.len());
        }
        address
    }

    /// The path of the driver's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The socket as an address for the controllers.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Stops the driver like a crash: connections break, and calls in progress are not finished.
    /// Volumes are kept.
    pub fn away(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Uses a separate thread, because the test's thread may not allow blocking.
            let stop = std::thread::spawn(|| runtime.shutdown_timeout(Duration::from_secs(5)));
            stop.join().expect("the runtime is shut down");
        }
        self.sockets().for_each(remove);
    }

    /// Serves again after [`away`](Self::away).
    pub fn resume(&mut self) {
        if self.runtime.is_some() {
            return;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("memory-driver")
            .enable_all()
            .build()
            .expect("a runtime can be made");
        for number in 0..=self.others.len() {
            self.open(&runtime, number);
        }
        self.runtime = Some(runtime);
    }

    fn sockets(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.socket)
            .chain(&self.others)
            .map(PathBuf::as_path)
    }

    fn open(&self, runtime: &Runtime, number: usize) {
        let socket = self.sockets().nth(number).expect("it has this socket");
        remove(socket);
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket)
        };
        let listener = listener.unwrap_or_else(|e| panic!("{}: {e}", socket.display()));
        let door = Door::new(self.shared.clone(), number);
        let services = rpc::add_all(door).handlers().services();
        runtime.spawn(async move {
            let connections = UnixListenerStream::new(listener);
            let served = Server::builder()
                .add_routes(services)
                .serve_with_incoming(connections);
            if let Err(e) = served.await {
                eprintln!("memory driver: {e}");
            }
        });
    }

    /// Changes the driver's capabilities or behaviour, from the next call on.
    pub fn change(&self, change: impl FnOnce(&mut Options)) {
        change(&mut self.shared.0.lock().options);
    }

    /// Assigns one step to each of the next calls of this method (`"CreateVolume"`). Later calls
    /// are answered as usual.
    pub fn script(&self, method: &str, steps: impl IntoIterator<Item = Step>) {
        self.shared.0.lock().script.add(method, steps);
    }

    /// Assigns this step to all calls of this method after those scripted before.
    pub fn always(&self, method: &str, step: Step) {
        self.shared.0.lock().script.always(method, step);
    }

    /// Removes the steps of this method.
    pub fn unscript(&self, method: &str) {
        self.shared.0.lock().script.clear(method);
    }

    /// The number of remaining steps from [`script`](Self::script).
    pub fn steps_left(&self, method: &str) -> usize {
        self.shared.0.lock().script.left(method)
    }

    /// All calls so far, in the order of arrival.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.0.lock().calls.all()
    }

    /// All requests of this type so far, in the order of arrival.
    pub fn requests<R: Rpc>(&self) -> Vec<R> {
        let calls = self.calls();
        calls.iter().filter_map(Call::request).cloned().collect()
    }

    /// The number of calls of this method, finished or not.
    pub fn count(&self, method: &str) -> usize {
        let calls = self.calls();
        calls.iter().filter(|call| call.method == method).count()
    }

    /// The number of calls of each method.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for call in self.calls() {
            *counts.entry(call.method).or_default() += 1;
        }
        counts
    }

    /// All volumes, by ID.
    pub fn volumes(&self) -> Vec<Volume> {
        let inner = self.shared.0.lock();
        inner.state.volumes.values().cloned().collect()
    }

    /// The volume with this ID.
    pub fn volume(&self, id: &str) -> Option<Volume> {
        self.shared.0.lock().state.volumes.get(id).cloned()
    }

    /// The volume with this name in its CreateVolume request.
    pub fn volume_named(&self, name: &str) -> Option<Volume> {
        self.volumes().into_iter().find(|v| v.name == name)
    }

    /// All snapshots, including members of groups.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let inner = self.shared.0.lock();
        inner.state.snapshots.values().cloned().collect()
    }

    /// Lets all snapshots become ready, however often they would have to be asked for.
    pub fn make_ready(&self) {
        let mut inner = self.shared.0.lock();
        for snapshot in inner.state.snapshots.values_mut() {
            snapshot.polls_left = 0;
        }
    }

    /// All group snapshots.
    pub fn groups(&self) -> Vec<Group> {
        let inner = self.shared.0.lock();
        inner.state.groups.values().cloned().collect()
    }

    /// The objects that are left.
    pub fn left(&self) -> Left {
        self.shared.0.lock().state.left()
    }

    /// Panics if anything is left.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let left = self.left();
        assert!(
            left == Left::default(),
            "left in the memory driver: {left:?}"
        );
    }

    /// Adds a volume without a call over the socket, as if it had always existed.
    pub fn add_volume(&self, request: csi::CreateVolumeRequest) -> Volume {
        let mut inner = self.shared.0.lock();
        let made = inner.work(state::State::create_volume, request);
        let id = made.ok().and_then(|made| made.volume);
        let id = id.expect("the volume can be made").volume_id;
        inner.state.volumes[&id].clone()
    }

    /// Removes a volume without a call.
    pub fn lose_volume(&self, id: &str) {
        self.shared.0.lock().state.volumes.remove(id);
    }

    /// Removes or adds a publication without a call.
    pub fn set_published(&self, volume: &str, node: &str, publication: Option<Publication>) {
        let mut inner = self.shared.0.lock();
        let volume = inner.state.volumes.get_mut(volume);
        let published = &mut volume.expect("the volume is there").published;
        match publication {
            Some(publication) => {
                published.insert(node.to_owned(), publication);
            }
            None => {
                published.remove(node);
            }
        }
    }

    /// Sets the volume's result in health calls; none means healthy.
    pub fn set_health(&self, volume: &str, health: Vec<VolumeHealthEntry>) {
        let mut inner = self.shared.0.lock();
        inner.state.health.insert(volume.to_owned(), health);
    }
}

impl Drop for MemoryDriver {
    fn drop(&mut self) {
        self.away();
    }
}

fn remove(socket: &Path) {
    match std::fs::remove_file(socket) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => panic!("{}: {e}", socket.display()),
    }
}

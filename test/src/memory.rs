//! A CSI driver that keeps its volumes in memory, to stand behind controllers under test.
//!
//! It is not hostloop: it shares nothing with it but the protocol, so what works with both works
//! with drivers. [`Options`] say what it is capable of and how it behaves, and can be changed
//! while it serves; [`MemoryDriver::script`] says what goes wrong and when; [`Call`]s tell what was
//! asked of it; and [`Left`] is what must be nothing at the end.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;

mod calls;
mod options;
mod script;
mod serve;
mod shared;
mod state;

#[cfg(test)]
mod tests;

pub use calls::{Call, RequestOf};
pub use options::{Capabilities, Options, Segments};
pub use script::Step;
pub use state::{Group, Left, Publication, Snapshot, Volume};

use shared::Shared;

/// A driver that serves until it is dropped. It has threads of its own, so it can be used from
/// tests of any kind.
pub struct MemoryDriver {
    shared: Arc<Shared>,
    socket: PathBuf,
    /// Further ones, from 1 on.
    others: Vec<PathBuf>,
    /// Nothing while it is away.
    runtime: Option<Runtime>,
}

impl MemoryDriver {
    /// Serves at this socket. Whatever lies there is removed.
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

    /// Serves at this socket, too, and returns its address: [`Call::door`] tells who came by it.
    pub fn also_at(&mut self, socket: impl Into<PathBuf>) -> String {
        let socket = socket.into();
        let address = format!("unix://{}", socket.display());
        self.others.push(socket);
        if let Some(runtime) = &self.runtime {
            self.open(runtime, self.others.len());
        }
        address
    }

    /// Where it serves.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The socket as an address for the controllers.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Stops as if it had crashed: connections break, and what was begun is not finished. Volumes
    /// are kept.
    pub fn away(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On a thread of its own: a test's may be one where nothing may block.
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
        runtime.spawn(serve::serve(self.shared.clone(), number, listener));
    }

    /// Changes what it is capable of or how it behaves, from the next call on.
    pub fn change(&self, change: impl FnOnce(&mut Options)) {
        change(&mut self.shared.lock().options);
    }

    /// The next calls of this method (`"CreateVolume"`) go by these steps, one each; later ones are
    /// answered as usual.
    pub fn script(&self, method: &str, steps: impl IntoIterator<Item = Step>) {
        self.shared.lock().script.add(method, steps);
    }

    /// All calls of this method go by this step, once those scripted before are used up.
    pub fn always(&self, method: &str, step: Step) {
        self.shared.lock().script.always(method, step);
    }

    /// Forgets what is scripted for this method.
    pub fn unscript(&self, method: &str) {
        self.shared.lock().script.clear(method);
    }

    /// How many steps of [`script`](Self::script) are still to come.
    pub fn steps_left(&self, method: &str) -> usize {
        self.shared.lock().script.left(method)
    }

    /// All calls so far, in the order they came.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.lock().calls.all()
    }

    /// All requests of this kind so far, in the order they came.
    pub fn requests<R: RequestOf + Any + Clone>(&self) -> Vec<R> {
        let calls = self.calls();
        calls.iter().filter_map(Call::request).cloned().collect()
    }

    /// How many calls of this method have come, finished or not.
    pub fn count(&self, method: &str) -> usize {
        let calls = self.calls();
        calls.iter().filter(|call| call.method == method).count()
    }

    /// How many calls of each method have come.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for call in self.calls() {
            *counts.entry(call.method).or_default() += 1;
        }
        counts
    }

    /// Forgets the calls so far.
    pub fn forget_calls(&self) {
        self.shared.lock().calls.clear();
    }

    /// The volumes there are, by ID.
    pub fn volumes(&self) -> Vec<Volume> {
        let inner = self.shared.lock();
        inner.state.volumes.values().cloned().collect()
    }

    /// The volume of this ID.
    pub fn volume(&self, id: &str) -> Option<Volume> {
        self.shared.lock().state.volumes.get(id).cloned()
    }

    /// The volume that was made by this name.
    pub fn volume_named(&self, name: &str) -> Option<Volume> {
        self.volumes().into_iter().find(|v| v.name == name)
    }

    /// The snapshots there are, members of groups among them.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let inner = self.shared.lock();
        inner.state.snapshots.values().cloned().collect()
    }

    /// The group snapshots there are.
    pub fn groups(&self) -> Vec<Group> {
        let inner = self.shared.lock();
        inner.state.groups.values().cloned().collect()
    }

    /// What is there.
    pub fn left(&self) -> Left {
        self.shared.lock().state.left()
    }

    /// Fails if anything is left.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let left = self.left();
        assert!(
            left == Left::default(),
            "left in the memory driver: {left:?}"
        );
    }

    /// Makes a volume without being asked over the socket, as if it had always been there.
    pub fn add_volume(&self, request: csi::CreateVolumeRequest) -> Volume {
        let mut inner = self.shared.lock();
        let made = inner.with_state(|state, options| state.create_volume(options, request));
        let id = made.ok().and_then(|made| made.volume);
        let id = id.expect("the volume can be made").volume_id;
        inner.state.volumes[&id].clone()
    }

    /// Removes a volume behind everybody's back.
    pub fn lose_volume(&self, id: &str) {
        self.shared.lock().state.volumes.remove(id);
    }

    /// Takes a publication away behind everybody's back, or fakes one.
    pub fn set_published(&self, volume: &str, node: &str, publication: Option<Publication>) {
        let mut inner = self.shared.lock();
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

    /// What the health calls say of a volume; nothing: it is well.
    pub fn set_health(&self, volume: &str, health: Vec<VolumeHealthEntry>) {
        let mut inner = self.shared.lock();
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

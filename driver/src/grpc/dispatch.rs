//! Connects gRPC requests to the blocking services.
//!
//! [`service!`] is a table with one row for each RPC, such as:
//!
//! ```text
//! "NodeUnstageVolume" node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse
//!     about |r| &r.volume_id, as |_, _| Work::Unstage,
//!     holding |r, _| Key::volume_mount(&r.volume_id), but for [],
//!     freeing |r| Freed::Volume(r.volume_id.clone());
//! ```
//!
//! | Word | What follows it | Without it |
//! |---|---|---|
//! | `about` | the subject, for the log | |
//! | `in` | the lane (see [pool_threads](super::pool_threads)) | the subject's |
//! | `as` | the kind of work | a change |
//! | `unless` | what refuses a request before long work | nothing |
//! | `by` | the parameters with the namespace that takes a turn for a thread | the record's |
//! | `holding` | the lock keys (see [operation_locks](super::operation_locks)) | it only reads |
//! | `but for` | the fields that do not affect the answer | |
//! | `freeing` | what a success frees for others that wait | nothing |
//!
//! As implementations of [`Call`] and of tonic's trait, the ten RPCs of Node take 230 lines of
//! code. As a table they take 47, and one look shows which of them lock, and what.

use std::sync::Arc;
use std::time::Duration;

use hostloop_events::Call as Event;
use tonic::{Request, Response, Status};

use super::call_line::Interest;
use super::call_log::Report;
use super::event_fields::EventFields;
use super::metrics::Calls;
use super::operation_locks::{AfterSuccess, Fingerprint, GRACE, Hold, Operation, OperationLocks};
use super::pool_threads::{Lane, PoolThreads, Work};
use super::wait_limit::wait_limit;
use crate::record::{CLAIM, Parameters, namespace_of};
use crate::rpc_faults::{Fault, FaultInjector, FaultSubject, around};
use crate::storage::{Freed, GroupId, Pools, SnapshotId, VolumeHandle};

/// A request as the dispatcher sees it.
pub(crate) trait Call: EventFields + FaultSubject + Send + Sized + 'static {
    /// The full method name, as in the path of the HTTP/2 request.
    const METHOD: &'static str;

    /// The ID or name of the subject; empty if the RPC has none.
    fn about(&self) -> &str;

    /// The objects that the RPC changes or copies. An RPC that only reads has none.
    fn holds(&self, pools: &Pools) -> Vec<Hold>;

    /// The lane of the RPC; by default, the lane of its subject's pool.
    fn lane(&self, pools: &Pools) -> Lane {
        Lane::of_ids(pools, [self.about()])
    }

    /// What the RPC needs a thread for, if it holds something and is not refused.
    fn work(&self, pools: &Pools) -> Work;

    /// What the request has of the namespace of its object: see [`namespace_of`].
    fn parameters(&self) -> Option<&Parameters>;

    /// What a success frees for others that wait.
    fn frees(&self) -> Option<Freed>;

    /// A digest of all fields that affect the answer.
    fn fingerprint(&self) -> Fingerprint;
}

/// A service that may know, before long work, that it refuses a request.
pub(crate) trait Refuses<C> {
    /// True if the service refuses the request without a look at disks.
    fn refuses(&self, _request: &C) -> bool {
        false
    }
}

/// The state that every service needs to answer RPCs.
#[derive(Clone)]
pub(crate) struct Dispatcher {
    pub(crate) locks: OperationLocks,
    pub(crate) pool_threads: PoolThreads,
    pub(crate) pools: Arc<Pools>,
    pub(crate) calls: Arc<Calls>,
    /// The faults of RPCs, with `--fault-rules`.
    pub(crate) faults: Option<Arc<FaultInjector>>,
}

/// An RPC that is about to run.
struct Accepted<C> {
    request: C,
    holds: Vec<Hold>,
    namespace: String,
    wait_limit: Duration,
    event: Option<Event>,
}

impl Dispatcher {
    /// Runs `work` on the blocking pool under the request's locks, then logs the RPC.
    pub(crate) async fn answer<C, S, R, E>(
        &self,
        service: &Arc<S>,
        request: Request<C>,
        work: fn(&S, C) -> Result<R, E>,
    ) -> Result<Response<R>, Status>
    where
        C: Call,
        S: Refuses<C> + Send + Sync + 'static,
        R: EventFields + Clone + Send + Sync + 'static,
        E: Into<Status> + 'static,
    {
        let wait_limit = wait_limit(request.metadata());
        let request = request.into_inner();
        let mut holds = request.holds(&self.pools);
        // An empty ID needs no lock: the service refuses the request.
        holds.retain(|hold| !hold.key.text().is_empty());
        let interest = if holds.is_empty() {
            Interest::Question
        } else {
            Interest::Change
        };
        let mut report = Report::begin(&self.calls, C::METHOD, request.about(), interest);
        let mut namespace = request.parameters().map_or("", namespace_of).to_owned();
        if interest == Interest::Change {
            let object = object_of(&self.pools, request.about());
            let name = object.as_ref().map(|object| &*object.name);
            report = report.with_events(name, request.event_fields());
            if namespace.is_empty() {
                namespace = object.map(|object| object.namespace).unwrap_or_default();
            }
        }
        let event = report.event();
        let fault = self.fault_of(&request, event.as_ref());
        let accepted = Accepted {
            request,
            holds,
            namespace,
            wait_limit: left_of(wait_limit, fault.as_ref()),
            event,
        };
        let answer = around(fault, self.perform(service.clone(), accepted, work)).await;
        report.end_with(answer.as_ref().map(EventFields::event_fields));
        answer.map(Response::new)
    }

    /// The fault of an RPC by the rules. Without rules, it looks nothing up.
    pub(crate) fn fault_of<C: Call>(&self, request: &C, event: Option<&Event>) -> Option<Fault> {
        let faults = self.faults.as_ref()?;
        let object = object_of(&self.pools, request.about());
        let mut subject = request.subject();
        if let Some(object) = &object {
            subject.objects.push(&object.name);
            if subject.claim.is_empty() {
                subject.claim = &object.claim;
            }
            if subject.namespace.is_empty() {
                subject.namespace = &object.namespace;
            }
        }
        let fault = faults.decide(C::METHOD, &subject)?;
        if let Some(event) = event {
            fault.show_in(event);
        }
        Some(fault)
    }

    /// Runs the work of an RPC under its locks.
    async fn perform<C, S, R, E>(
        &self,
        service: Arc<S>,
        accepted: Accepted<C>,
        work: fn(&S, C) -> Result<R, E>,
    ) -> Result<R, Status>
    where
        C: Call,
        S: Refuses<C> + Send + Sync + 'static,
        R: Clone + Send + Sync + 'static,
        E: Into<Status> + 'static,
    {
        let Accepted {
            request,
            holds,
            namespace,
            wait_limit,
            event,
        } = accepted;
        let method = C::METHOD;
        let lane = request.lane(&self.pools);
        if holds.is_empty() {
            let thread = self.pool_threads.question(&lane, method).await?;
            return self
                .locks
                .read(thread, move || work(&service, request))
                .await;
        }
        let requested = request.work(&self.pools);
        // A refused request waits for no copy. It would wait again at each retry.
        let refused = requested.is_long() && service.refuses(&request);
        let kind = if refused { Work::Change } else { requested };
        let threads = self.pool_threads.of(&lane, kind);
        let fingerprint = request.fingerprint();
        let then = request.frees().map(|freed| announcing(&self.pools, freed));
        let long = kind.is_long();
        let grace = long.then_some(GRACE);
        let operation = Operation {
            method,
            holds,
            fingerprint,
            wait_limit,
            namespace,
            long,
            grace,
            then,
        };
        let pool_threads = self.pool_threads.clone();
        let pools = self.pools.clone();
        self.locks
            .run(threads, operation, move || {
                if !long {
                    check_still_short(&*service, &request, &pools)?;
                }
                let answer = pool_threads.run(&lane, kind, || match event {
                    Some(event) => event.run(|| work(&service, request)),
                    None => work(&service, request),
                });
                answer.map_err(Into::<Status>::into)
            })
            .await
    }
}

/// What a delay before the call leaves of the time that it may wait for others. Its deadline began
/// when it arrived.
fn left_of(wait_limit: Duration, fault: Option<&Fault>) -> Duration {
    let delay = fault.map_or(Duration::ZERO, |fault| fault.delay_before);
    wait_limit.saturating_sub(delay)
}

/// Fails if a request for short work is one for long work by now: its pool was opened while it
/// waited. It would hold a thread of short work, and give way to nothing.
fn check_still_short<C, S>(service: &S, request: &C, pools: &Pools) -> Result<(), Status>
where
    C: Call,
    S: Refuses<C>,
{
    if !request.work(pools).is_long() || service.refuses(request) {
        return Ok(());
    }
    let why = "a pool opened while the call waited, and the call may take long now: repeat it";
    Err(Status::unavailable(why))
}

fn announcing(pools: &Arc<Pools>, freed: Freed) -> AfterSuccess {
    let pools = pools.clone();
    Box::new(move || pools.freed().announce(freed))
}

/// What an object was created with.
struct Object {
    name: String,
    namespace: String,
    claim: String,
}

impl Object {
    fn new(name: &str, parameters: &Parameters) -> Object {
        Object {
            name: name.to_owned(),
            namespace: namespace_of(parameters).to_owned(),
            claim: parameters.get(CLAIM).cloned().unwrap_or_default(),
        }
    }
}

/// The volume, snapshot or group with this ID.
fn object_of(pools: &Pools, id: &str) -> Option<Object> {
    if let Ok(id) = id.parse::<SnapshotId>() {
        let snapshot = pools.snapshot(&id).ok()?;
        return Some(Object::new(&snapshot.name, &snapshot.parameters));
    }
    if let Ok(id) = id.parse::<GroupId>() {
        let group = pools.group(&id).ok()?;
        return Some(Object::new(&group.name, &group.parameters));
    }
    let volume = pools.volume(&id.parse::<VolumeHandle>().ok()?).ok()?;
    Some(Object::new(&volume.name, &volume.parameters))
}

/// Makes a tonic service from a blocking one, given a table of its RPCs.
macro_rules! service {
    (
        $name:ident: $full:literal, $server:ident::$trait:ident, done by $service:ident;
        $(
            $rpc:literal $method:ident($request:ident) -> $response:ident
            about $about:expr
            $(, in $lane:expr)?
            $(, as $work:expr)?
            $(, unless $refused:expr)?
            $(, by $parameters:expr)?
            $(, holding $holds:expr, but for [$($ignored:ident),*])?
            $(, freeing $freed:expr)?;
        )+
    ) => {
        pub(crate) struct $name {
            pub(crate) dispatcher: $crate::grpc::dispatch::Dispatcher,
            pub(crate) service: std::sync::Arc<$service>,
        }

        $($crate::grpc::dispatch::call! {
            $request, concat!("/", $full, "/", $rpc), $about
            $(, in $lane)?
            $(, as $work)?
            $(, by $parameters)?
            $(, holding $holds, [$($ignored),*])?
            $(, freeing $freed)?
        })+

        $(
            impl $crate::grpc::dispatch::Refuses<hostloop_proto::csi::$request> for $service {
                $(
                    fn refuses(&self, request: &hostloop_proto::csi::$request) -> bool {
                        let refused: fn(&$service, &hostloop_proto::csi::$request) -> bool =
                            $refused;
                        refused(self, request)
                    }
                )?
            }
        )+

        #[tonic::async_trait]
        impl hostloop_proto::csi::$server::$trait for $name {
            $(
                async fn $method(
                    &self,
                    request: tonic::Request<hostloop_proto::csi::$request>,
                ) -> Result<tonic::Response<hostloop_proto::csi::$response>, tonic::Status> {
                    self.dispatcher.answer(&self.service, request, $service::$method).await
                }
            )+
        }
    };
}

/// One row of [`service!`].
macro_rules! call {
    (
        $request:ident, $method:expr, $about:expr
        $(, in $lane:expr)?
        $(, as $work:expr)?
        $(, by $parameters:expr)?
        $(, holding $holds:expr, [$($ignored:ident),*])?
        $(, freeing $freed:expr)?
    ) => {
        impl $crate::grpc::dispatch::Call for hostloop_proto::csi::$request {
            const METHOD: &'static str = $method;

            fn about(&self) -> &str {
                let about: fn(&Self) -> &str = $about;
                about(self)
            }

            fn holds(
                &self,
                _pools: &$crate::storage::Pools,
            ) -> Vec<$crate::grpc::operation_locks::Hold> {
                $(
                    let holds: fn(
                        &Self,
                        &$crate::storage::Pools,
                    ) -> Vec<$crate::grpc::operation_locks::Hold> = $holds;
                    return holds(self, _pools);
                )?
                #[allow(unreachable_code, reason = "of a row that holds something")]
                Vec::new()
            }

            $(
                fn lane(&self, pools: &$crate::storage::Pools) -> $crate::grpc::pool_threads::Lane {
                    let lane: fn(
                        &Self,
                        &$crate::storage::Pools,
                    ) -> $crate::grpc::pool_threads::Lane = $lane;
                    lane(self, pools)
                }
            )?

            fn work(&self, _pools: &$crate::storage::Pools) -> $crate::grpc::pool_threads::Work {
                $(
                    let work: fn(
                        &Self,
                        &$crate::storage::Pools,
                    ) -> $crate::grpc::pool_threads::Work = $work;
                    return work(self, _pools);
                )?
                #[allow(unreachable_code, reason = "of a row that is another kind of work")]
                $crate::grpc::pool_threads::Work::Change
            }

            fn parameters(&self) -> Option<&$crate::record::Parameters> {
                $(
                    let parameters: fn(&Self) -> &$crate::record::Parameters = $parameters;
                    return Some(parameters(self));
                )?
                #[allow(unreachable_code, reason = "of a row that names them")]
                None
            }

            fn frees(&self) -> Option<$crate::storage::Freed> {
                $(
                    let freed: fn(&Self) -> $crate::storage::Freed = $freed;
                    return Some(freed(self));
                )?
                #[allow(unreachable_code, reason = "of a row that frees something")]
                None
            }

            fn fingerprint(&self) -> $crate::grpc::operation_locks::Fingerprint {
                #[allow(unused_mut, reason = "of a row that has no fields to leave out")]
                let mut decisive = self.clone();
                $($(decisive.$ignored = Default::default();)*)?
                // Maps are ordered, so equal requests have equal bytes.
                $crate::grpc::operation_locks::Fingerprint::of(&prost::Message::encode_to_vec(&decisive))
            }
        }
    };
}

pub(crate) use {call, service};

#[cfg(test)]
mod tests;

//! Connects gRPC requests to the blocking services.
//!
//! [`service!`] is a table with one row for each RPC. A row names the subject of the RPC (for the
//! log) and, if it is not the subject's, the lane (see [pool_threads](super::pool_threads)). It
//! names the kind of work, if it is not a change, and the parameters with the namespace that takes a
//! turn for a thread. By default, the record of the subject has these. It also names the lock
//! keys (see [operation_locks](super::operation_locks)), the fields that do not affect the answer,
//! and what the RPC frees.

use std::sync::Arc;
use std::time::Duration;

use tonic::{Request, Response, Status};

use super::call_log::{Interest, Report};
use super::event_fields::EventFields;
use super::metrics::Calls;
use super::operation_locks::{AfterSuccess, Fingerprint, Hold, Operation, OperationLocks};
use super::pool_threads::{Lane, PoolThreads, Work};
use super::wait_limit::wait_limit;
use crate::record::{Parameters, namespace_of};
use crate::storage::{Freed, GroupId, Pools, SnapshotId, VolumeHandle};

/// How long long work goes on without a caller. Kubelet, Kubernetes' controllers and upstream's
/// sidecars retry at least every five minutes.
const GRACE: Duration = Duration::from_secs(360);

/// A request as the dispatcher sees it.
pub(crate) trait Call: EventFields + Send + Sized + 'static {
    /// The full method name, as in the path of the HTTP/2 request.
    const METHOD: &'static str;

    /// The ID or name of the subject; empty if the RPC has none.
    fn about(&self) -> &str;

    /// The objects that the RPC changes or copies. An RPC that only reads has none.
    fn holds(&self) -> Vec<Hold>;

    /// The lane of the RPC; by default, the lane of its subject's pool.
    fn lane(&self, pools: &Pools) -> Lane {
        Lane::of_ids(pools, [self.about()])
    }

    /// What the RPC needs a thread for, if it holds something.
    fn work(&self, pools: &Pools) -> Work;

    /// What the request has of the namespace of its object: see [`namespace_of`].
    fn parameters(&self) -> Option<&Parameters>;

    /// What a success frees for others that wait.
    fn frees(&self) -> Option<Freed>;

    /// A digest of all fields that affect the answer.
    fn fingerprint(&self) -> Fingerprint;
}

/// The state that every service needs to answer RPCs.
#[derive(Clone)]
pub(crate) struct Dispatcher {
    pub(crate) locks: OperationLocks,
    pub(crate) pool_threads: PoolThreads,
    pub(crate) pools: Arc<Pools>,
    pub(crate) calls: Arc<Calls>,
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
        S: Send + Sync + 'static,
        R: EventFields + Clone + Send + Sync + 'static,
        E: Into<Status> + 'static,
    {
        let wait_limit = wait_limit(request.metadata());
        let request = request.into_inner();
        let service = service.clone();
        let mut holds = request.holds();
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
        let lane = request.lane(&self.pools);
        let answer = if holds.is_empty() {
            match self.pool_threads.question(&lane, C::METHOD).await {
                Ok(thread) => {
                    self.locks
                        .read(thread, move || work(&service, request))
                        .await
                }
                Err(status) => Err(status),
            }
        } else {
            let kind = request.work(&self.pools);
            let threads = self.pool_threads.of(&lane, kind);
            let fingerprint = request.fingerprint();
            let then = request.frees().map(|freed| announcing(&self.pools, freed));
            let method = C::METHOD;
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
            let event = report.event();
            let pool_threads = self.pool_threads.clone();
            self.locks
                .run(threads, operation, move || {
                    pool_threads.run(&lane, kind, || match event {
                        Some(event) => event.run(|| work(&service, request)),
                        None => work(&service, request),
                    })
                })
                .await
        };
        report.end_with(answer.as_ref().map(EventFields::event_fields));
        answer.map(Response::new)
    }
}

fn announcing(pools: &Arc<Pools>, freed: Freed) -> AfterSuccess {
    let pools = pools.clone();
    Box::new(move || pools.freed().announce(freed))
}

/// What an object was created with.
struct Object {
    name: String,
    namespace: String,
}

impl Object {
    fn new(name: &str, parameters: &Parameters) -> Object {
        Object {
            name: name.to_owned(),
            namespace: namespace_of(parameters).to_owned(),
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

            fn holds(&self) -> Vec<$crate::grpc::operation_locks::Hold> {
                $(
                    let holds: fn(&Self) -> Vec<$crate::grpc::operation_locks::Hold> = $holds;
                    return holds(self);
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

//! From a request on the wire to a call of a service that blocks, and back.
//!
//! [`service!`] is a table with one row for each call. A row says what the call is about (for the
//! log), and its lane (see [lanes](super::lanes)) if that is not the lane of its subject. It also
//! says which keys the call holds (for the [desk](super::desk)), and which fields do not affect its
//! answer.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::call_log::{Interest, Observer};
use super::lanes::{Lane, Lanes, Work};
use super::operation_locks::{Desk, Fingerprint, Key};
use crate::storage::Pools;

/// A request, as the server sees it.
pub(crate) trait Call: Send + Sized + 'static {
    /// The full method name, as it is in the path of the HTTP/2 request.
    const METHOD: &'static str;

    /// The ID or name of what it is about; empty if it is about nothing in particular.
    fn about(&self) -> &str;

    /// What it holds while it works. Nothing: it only reads.
    fn holds(&self) -> Vec<Key>;

    /// Its lane; by default that of the pool of what it is about.
    fn lane(&self, pools: &Pools) -> Lane {
        Lane::of_ids(pools, [self.about()])
    }

    /// Of everything that decides the answer.
    fn fingerprint(&self) -> Fingerprint;
}

/// What every service needs to answer.
#[derive(Clone)]
pub(crate) struct Dispatcher {
    pub(crate) desk: Desk,
    pub(crate) lanes: Lanes,
    pub(crate) pools: Arc<Pools>,
    pub(crate) observer: Observer,
}

impl Dispatcher {
    /// Has `work` done on a thread that may block, with what the request holds, and reports it.
    pub(crate) async fn answer<C, S, R, E>(
        &self,
        service: &Arc<S>,
        request: Request<C>,
        work: fn(&S, C) -> Result<R, E>,
    ) -> Result<Response<R>, Status>
    where
        C: Call,
        S: Send + Sync + 'static,
        R: Clone + Send + Sync + 'static,
        E: Into<Status> + 'static,
    {
        let request = request.into_inner();
        let service = service.clone();
        let mut keys = request.holds();
        // An ID that is missing is nobody's: the service refuses it.
        keys.retain(|key| !key.is_empty());
        let interest = match keys.is_empty() {
            true => Interest::Question,
            false => Interest::Change,
        };
        let report = self.observer.begin(C::METHOD, request.about(), interest);
        let lane = request.lane(&self.pools);
        let answer = if keys.is_empty() {
            match self.lanes.question(&lane, C::METHOD).await {
                Ok(thread) => {
                    let work = move || work(&service, request);
                    self.desk.read(thread, work).await
                }
                Err(status) => Err(status),
            }
        } else {
            let threads = self.lanes.threads(&lane, Work::Change);
            let fingerprint = request.fingerprint();
            let work = move || work(&service, request);
            let desk = &self.desk;
            desk.run(threads, C::METHOD, keys, fingerprint, work).await
        };
        report.end(answer.as_ref().err());
        answer.map(Response::new)
    }
}

/// Makes a tonic service of one whose calls block, from a table of its calls.
macro_rules! service {
    (
        $(#[$doc:meta])*
        $name:ident: $full:literal, $server:ident::$trait:ident, done by $service:ident;
        $(
            $rpc:literal $method:ident($request:ident) -> $response:ident
            about $about:expr
            $(, in $lane:expr)?
            $(, holding $holds:expr, but for [$($ignored:ident),*])?;
        )+
    ) => {
        $(#[$doc])*
        pub(crate) struct $name {
            pub(crate) front: $crate::grpc::dispatch::Dispatcher,
            pub(crate) service: std::sync::Arc<$service>,
        }

        $($crate::grpc::dispatch::call! {
            $request, concat!("/", $full, "/", $rpc), $about
            $(, in $lane)?
            $(, $holds, [$($ignored),*])?
        })+

        #[tonic::async_trait]
        impl hostloop_proto::csi::$server::$trait for $name {
            $(
                async fn $method(
                    &self,
                    request: tonic::Request<hostloop_proto::csi::$request>,
                ) -> Result<tonic::Response<hostloop_proto::csi::$response>, tonic::Status> {
                    self.front.answer(&self.service, request, $service::$method).await
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
        $(, $holds:expr, [$($ignored:ident),*])?
    ) => {
        impl $crate::grpc::dispatch::Call for hostloop_proto::csi::$request {
            const METHOD: &'static str = $method;

            fn about(&self) -> &str {
                let about: fn(&Self) -> &str = $about;
                about(self)
            }

            fn holds(&self) -> Vec<$crate::grpc::operation_locks::Key> {
                $(
                    let holds: fn(&Self) -> Vec<$crate::grpc::operation_locks::Key> = $holds;
                    return holds(self);
                )?
                #[allow(unreachable_code, reason = "of a row that holds something")]
                Vec::new()
            }

            $(
                fn lane(&self, pools: &$crate::storage::Pools) -> $crate::grpc::lanes::Lane {
                    let lane: fn(&Self, &$crate::storage::Pools) -> $crate::grpc::lanes::Lane =
                        $lane;
                    lane(self, pools)
                }
            )?

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

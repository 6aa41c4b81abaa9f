//! The SnapshotMetadata service over gRPC, which answers with streams.
//!
//! A blocking thread reads extents a few messages ahead of the caller. It stops when the caller
//! hangs up or receives nothing for too long.

use std::sync::{Arc, Weak};
use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::csi::snapshot_metadata_server::SnapshotMetadata;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::call_line::Interest;
use super::call_log::Report;
use super::dispatch::{Call, Dispatcher, call};
use super::operation_locks::{guarded, shutting_down};
use super::permits::Permit;
use super::pool_threads::Work;
use crate::controller::{self, Controller};
use crate::kernel::wanted::Wanted;
use crate::rpc_faults::Fault;

call!(
    GetMetadataAllocatedRequest,
    "/csi.v1.SnapshotMetadata/GetMetadataAllocated",
    |r| &r.snapshot_id
);
call!(
    GetMetadataDeltaRequest,
    "/csi.v1.SnapshotMetadata/GetMetadataDelta",
    |r| &r.target_snapshot_id
);

/// Messages read ahead of the caller.
const AHEAD: usize = 4;
/// How long a caller may receive nothing before the server ends its stream.
const STALL: Duration = Duration::from_secs(60);

/// The SnapshotMetadata service.
pub(crate) struct MetadataService {
    dispatcher: Dispatcher,
    service: Arc<Controller>,
}

type Answers<M> = ReceiverStream<Result<M, Status>>;

/// An RPC that passes its messages to a function, until that returns false.
type Produce<C, M> = fn(&Controller, C, &mut dyn FnMut(M) -> bool) -> controller::Result<()>;

impl MetadataService {
    pub(crate) fn new(dispatcher: Dispatcher, service: Arc<Controller>) -> Self {
        MetadataService {
            dispatcher,
            service,
        }
    }

    async fn stream<C: Call, M: Send + 'static>(
        &self,
        request: Request<C>,
        work: Produce<C, M>,
    ) -> Result<Response<Answers<M>>, Status> {
        let request = request.into_inner();
        let report = Report::begin(
            &self.dispatcher.calls,
            C::METHOD,
            request.about(),
            Interest::Question,
        );
        let fault = self.dispatcher.fault_of(&request, None);
        if let Some(fault) = &fault
            && let Err(status) = before_stream(fault).await
        {
            report.end(Some(&status));
            return Err(status);
        }
        let lane = request.lane(&self.dispatcher.pools);
        let turn = self
            .dispatcher
            .pool_threads
            .of(&lane, Work::Stream)
            .acquire("")
            .await;
        let turn = turn.ok_or_else(shutting_down)?;
        let service = self.service.clone();
        let mut answers = produce_on_thread(
            move |emit| work(&service, request, emit),
            report,
            turn,
            STALL,
        );
        if let Some(fault) = fault.filter(Fault::hides_answer) {
            hide(&fault, &mut answers).await?;
        }
        Ok(Response::new(answers))
    }
}

/// Waits before a stream that has a fault. The wait between the call and its answer is here, too:
/// afterwards it would hold the thread that reads.
async fn before_stream(fault: &Fault) -> Result<(), Status> {
    fault.before().await?;
    if fault.hides_answer() {
        return Ok(());
    }
    fault.after().await
}

/// Takes all of a stream. Fails with what its caller gets in place of it.
async fn hide<M>(fault: &Fault, answers: &mut Answers<M>) -> Result<(), Status> {
    while answers.next().await.is_some() {}
    fault.after().await
}

/// Runs `produce` on a blocking thread and returns the stream of the messages it emits.
fn produce_on_thread<M, P>(produce: P, report: Report, turn: Permit, stall: Duration) -> Answers<M>
where
    M: Send + 'static,
    P: FnOnce(&mut dyn FnMut(M) -> bool) -> controller::Result<()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(AHEAD + 1);
    let last_word = LastWord::reserve(&sender);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let mut end = End::Complete;
        let wanted = wanted_by_caller(&sender);
        let done = wanted.run(|| {
            guarded(|| {
                produce(&mut |message| {
                    let sent = runtime.block_on(sender.send_timeout(Ok(message), stall));
                    match sent {
                        Ok(()) => return true,
                        Err(mpsc::error::SendTimeoutError::Closed(_)) => end = End::Gone,
                        Err(mpsc::error::SendTimeoutError::Timeout(_)) => end = End::Stalled,
                    }
                    false
                })
            })
        });
        if wanted.has_ended() {
            end = End::Gone;
        }
        let answer = match (end, done) {
            // Dropping the report logs the RPC as cancelled: the caller hung up.
            (End::Gone, _) => return last_word.say(Ok(())),
            (End::Stalled, _) => Err(Status::deadline_exceeded(format!(
                "nothing was taken from the stream for {} s",
                stall.as_secs_f64()
            ))),
            (End::Complete, done) => done,
        };
        report.end(answer.as_ref().err());
        last_word.say(answer);
    });
    ReceiverStream::new(receiver)
}

/// Work that ends at its next step once the caller has hung up. A comparison of equal content sends no
/// message that would fail.
fn wanted_by_caller<M: Send + 'static>(sender: &mpsc::Sender<Result<M, Status>>) -> Arc<Wanted> {
    let caller = sender.clone();
    Arc::new_cyclic(|wanted: &Weak<Wanted>| {
        let wanted = wanted.clone();
        Wanted::with_step(move || {
            if caller.is_closed()
                && let Some(wanted) = wanted.upgrade()
            {
                wanted.end();
            }
        })
    })
}

/// How a stream ended.
enum End {
    Complete,
    Gone,
    Stalled,
}

/// A slot reserved in the channel for the final error of a stream. Without it, a truncated stream
/// would look complete to the caller.
struct LastWord<M>(Option<OwnedPermit<Result<M, Status>>>);

impl<M> LastWord<M> {
    fn reserve(sender: &mpsc::Sender<Result<M, Status>>) -> Self {
        LastWord(sender.clone().try_reserve_owned().ok())
    }

    fn say(mut self, answer: Result<(), Status>) {
        if let Some(place) = self.0.take()
            && let Err(status) = answer
        {
            place.send(Err(status));
        }
    }
}

impl<M> Drop for LastWord<M> {
    fn drop(&mut self) {
        if let Some(place) = self.0.take() {
            place.send(Err(shutting_down()));
        }
    }
}

#[tonic::async_trait]
impl SnapshotMetadata for MetadataService {
    type GetMetadataAllocatedStream = Answers<csi::GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Answers<csi::GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        self.stream(request, Controller::get_metadata_allocated)
            .await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<csi::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        self.stream(request, Controller::get_metadata_delta).await
    }
}

#[cfg(test)]
mod tests;

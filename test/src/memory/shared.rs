//! What all connections share, and a call's way through it.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tonic::{Code, Request, Response, Status};

use super::calls::{Calls, RequestOf};
use super::options::Options;
use super::script::{Script, Step};
use super::state::State;

pub(super) struct Shared {
    inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) state: State,
    pub(super) script: Script,
    pub(super) calls: Calls,
}

impl Inner {
    pub(super) fn with_state<R>(&mut self, work: impl FnOnce(&mut State, &Options) -> R) -> R {
        work(&mut self.state, &self.options)
    }
}

/// What answers a request.
pub(super) type Work<Q, R> = fn(&mut State, &Options, Q) -> Result<R, Status>;

impl Shared {
    pub(super) fn new(options: Options) -> Shared {
        Shared {
            inner: Mutex::new(Inner {
                options,
                state: State::default(),
                script: Script::default(),
                calls: Calls::default(),
            }),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A test that failed meanwhile has said so itself.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a call as the script says.
    pub(super) async fn answer<Q, R>(
        self: &Arc<Self>,
        door: usize,
        request: Request<Q>,
        work: Work<Q, R>,
    ) -> Result<Response<R>, Status>
    where
        Q: RequestOf + Any + Clone + Send + Sync + 'static,
        R: Send + 'static,
    {
        let request = request.into_inner();
        let (number, step) = {
            let mut inner = self.lock();
            let number = inner.calls.begin(request.clone(), door);
            (number, inner.script.next(Q::METHOD))
        };
        let silent = matches!(step, Step::DropAnswer);
        let shared = self.clone();
        // In a task of its own: what was begun is done, also if the caller hangs up.
        let done = tokio::spawn(async move { shared.act(step, request, work).await });
        let answer = done
            .await
            .unwrap_or_else(|e| Err(Status::internal(e.to_string())));
        if silent {
            return std::future::pending().await;
        }
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        self.lock().calls.end(number, code);
        answer.map(Response::new)
    }

    async fn act<Q, R>(&self, step: Step, request: Q, work: Work<Q, R>) -> Result<R, Status> {
        match step {
            Step::Fail(code) => return Err(Step::status(code)),
            Step::Delay(time) => tokio::time::sleep(time).await,
            Step::Pass | Step::DoneBut(_) | Step::DropAnswer => {}
        }
        let answer = self
            .lock()
            .with_state(|s, options| work(s, options, request));
        match step {
            Step::DoneBut(code) => answer.and(Err(Step::status(code))),
            _ => answer,
        }
    }
}

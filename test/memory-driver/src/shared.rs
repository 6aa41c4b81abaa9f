//! The state that all connections share, and the course of a call.

use std::sync::Arc;

use futures::FutureExt;
use parking_lot::Mutex;
use tonic::{Code, Status};

use crate::calls::Calls;
use crate::options::Options;
use crate::rpc::{Handlers, Rpc};
use crate::script::{Script, Step};
use crate::state::State;

#[derive(Default)]
pub(crate) struct Shared(pub(crate) Mutex<Inner>);

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) state: State,
    pub(crate) script: Script,
    pub(crate) calls: Calls,
}

/// Changes the state as an RPC does, and returns the response.
pub(crate) type Work<Q> = fn(&mut State, &Options, Q) -> Result<<Q as Rpc>::Response, Status>;

impl Inner {
    pub(crate) fn work<Q: Rpc>(
        &mut self,
        work: Work<Q>,
        request: Q,
    ) -> Result<Q::Response, Status> {
        work(&mut self.state, &self.options, request)
    }
}

/// The handlers of one socket.
pub(crate) struct Door {
    shared: Arc<Shared>,
    number: usize,
    handlers: Handlers,
}

impl Door {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Door {
            shared,
            number,
            handlers: Handlers::default(),
        }
    }

    /// Adds the handler of an RPC.
    pub(crate) fn with<Q: Rpc>(self, work: Work<Q>) -> Self {
        let (shared, number) = (self.shared.clone(), self.number);
        self.handlers.on_async(move |request: Q| {
            let shared = shared.clone();
            async move { shared.answer(number, request, work).await }.boxed()
        });
        self
    }

    pub(crate) fn handlers(self) -> Handlers {
        self.handlers
    }
}

impl Shared {
    pub(crate) fn new(options: Options) -> Shared {
        Shared(Mutex::new(Inner {
            options,
            ..Inner::default()
        }))
    }

    /// Records a call and answers it as the script says.
    async fn answer<Q: Rpc>(
        self: &Arc<Self>,
        door: usize,
        request: Q,
        work: Work<Q>,
    ) -> Result<Q::Response, Status> {
        let (number, step) = {
            let mut inner = self.0.lock();
            let number = inner.calls.begin(request.clone(), door);
            (number, inner.script.next(Q::METHOD))
        };
        let silent = matches!(step, Step::DropAnswer);
        let shared = self.clone();
        // A task of its own takes effect even if the caller disconnects.
        let done = tokio::spawn(async move { shared.act(step, request, work).await });
        let answer = done
            .await
            .unwrap_or_else(|e| Err(Status::internal(e.to_string())));
        if silent {
            return std::future::pending().await;
        }
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        self.0.lock().calls.end(number, code);
        answer
    }

    async fn act<Q: Rpc>(
        &self,
        step: Step,
        request: Q,
        work: Work<Q>,
    ) -> Result<Q::Response, Status> {
        match step {
            Step::Fail(code) => return Err(Step::status(code)),
            Step::Delay(time) => tokio::time::sleep(time).await,
            Step::Pass | Step::DoneBut(_) | Step::DropAnswer => {}
        }
        let answer = self.0.lock().work(work, request);
        match step {
            Step::DoneBut(code) => answer.and(Err(Step::status(code))),
            _ => answer,
        }
    }
}

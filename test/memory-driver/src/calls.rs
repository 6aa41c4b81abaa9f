//! A record of the driver's calls.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use tonic::Code;

use crate::Rpc;

/// A received call.
#[derive(Clone, Debug)]
pub struct Call {
    /// The name of the RPC, such as `CreateVolume`.
    pub method: &'static str,
    /// The time at which it arrived.
    pub at: Instant,
    /// The time of the answer.
    pub answered: Option<Instant>,
    /// The number of the socket: 0 is the driver's own, the others are those of [`also_at`].
    ///
    /// [`also_at`]: super::MemoryDriver::also_at
    pub door: usize,
    /// The code of the answer. `None` without an answer.
    pub code: Option<Code>,
    request: Arc<dyn Any + Send + Sync>,
}

impl Call {
    /// The request with its secrets, if it has this type.
    pub fn request<Q: Rpc>(&self) -> Option<&Q> {
        self.request.downcast_ref()
    }
}

#[derive(Default)]
pub(crate) struct Calls {
    all: Vec<Call>,
}

impl Calls {
    /// Records a call and returns its number.
    pub(crate) fn begin<Q: Rpc>(&mut self, request: Q, door: usize) -> usize {
        self.all.push(Call {
            method: Q::METHOD,
            at: Instant::now(),
            answered: None,
            door,
            code: None,
            request: Arc::new(request),
        });
        self.all.len() - 1
    }

    pub(crate) fn end(&mut self, number: usize, code: Code) {
        if let Some(call) = self.all.get_mut(number) {
            call.code = Some(code);
            call.answered = Some(Instant::now());
        }
    }

    pub(crate) fn all(&self) -> Vec<Call> {
        self.all.clone()
    }
}

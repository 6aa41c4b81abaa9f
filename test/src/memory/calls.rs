//! What was asked of the driver.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use tonic::Code;

/// A request that is logged.
pub trait RequestOf {
    /// The RPC's name.
    const METHOD: &'static str;
}

/// A call that came.
#[derive(Clone, Debug)]
pub struct Call {
    /// The RPC's name: `CreateVolume`.
    pub method: &'static str,
    /// When it came.
    pub at: Instant,
    /// When it was answered.
    pub answered: Option<Instant>,
    /// By which socket: 0 is the driver's own, the others are by [`also_at`].
    ///
    /// [`also_at`]: super::MemoryDriver::also_at
    pub door: usize,
    /// What was answered; nothing yet, or never.
    pub code: Option<Code>,
    request: Arc<dyn Any + Send + Sync>,
}

impl Call {
    /// The request, secrets included, if it is of this kind.
    pub fn request<R: RequestOf + Any>(&self) -> Option<&R> {
        self.request.downcast_ref()
    }
}

#[derive(Default)]
pub(super) struct Calls {
    all: Vec<Call>,
    /// How many were forgotten.
    forgotten: usize,
}

impl Calls {
    /// Notes a call that came, and returns its number.
    pub(super) fn begin<R: RequestOf + Any + Send + Sync>(
        &mut self,
        request: R,
        door: usize,
    ) -> usize {
        self.all.push(Call {
            method: R::METHOD,
            at: Instant::now(),
            answered: None,
            door,
            code: None,
            request: Arc::new(request),
        });
        self.forgotten + self.all.len() - 1
    }

    pub(super) fn end(&mut self, number: usize, code: Code) {
        let known = number.checked_sub(self.forgotten);
        if let Some(call) = known.and_then(|at| self.all.get_mut(at)) {
            call.code = Some(code);
            call.answered = Some(Instant::now());
        }
    }

    pub(super) fn all(&self) -> Vec<Call> {
        self.all.clone()
    }

    pub(super) fn clear(&mut self) {
        self.forgotten += self.all.len();
        self.all.clear();
    }
}

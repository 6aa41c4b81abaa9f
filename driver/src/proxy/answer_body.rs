//! The body of an answer, which passes as it is. Its end is the end of the call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming};
use tonic::Code;

use super::call_record::CallRecord;

/// The body of the driver's answer, or none.
#[derive(Default)]
pub(super) struct AnswerBody {
    driver: Option<Incoming>,
    /// `None` once the call has ended.
    record: Option<CallRecord>,
}

impl AnswerBody {
    /// An answer that has more than headers. The record ends with it, or as cancelled if the caller
    /// does not take all of it.
    pub(super) fn passing(driver: Incoming, record: CallRecord) -> AnswerBody {
        AnswerBody {
            driver: Some(driver),
            record: Some(record),
        }
    }

    fn end(&mut self, code: Code, error: &str) {
        if let Some(record) = self.record.take() {
            record.end(code, error);
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(driver) = &mut self.driver else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut *driver).poll_frame(cx));
        let is_last = driver.is_end_stream();
        match &frame {
            Some(Ok(frame)) => match frame.trailers_ref() {
                Some(trailers) => {
                    let (code, message) = CallRecord::status_in(trailers);
                    self.end(code, &message);
                }
                None if is_last => self.end(Code::Unknown, "the answer has no trailers"),
                None => {}
            },
            Some(Err(error)) => self.end(Code::Unavailable, &error.to_string()),
            None => self.end(Code::Unknown, "the answer has no trailers"),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.driver.as_ref().is_none_or(Body::is_end_stream)
    }
}

//! The body of a request, which passes as it is after a look at its first message.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming};

/// What comes before each message of gRPC: a flag for compression, and the length.
const PREFIX: usize = 5;
/// The largest message that is looked at, in bytes.
const MAX_MESSAGE: usize = 4 << 20;

/// A body, and what has been read of it.
pub(super) struct RequestBody<B = Incoming> {
    /// In one piece: a client that sends byte by byte must not take memory for each.
    data: Bytes,
    /// What came in place of data.
    trailers: Option<Frame<Bytes>>,
    rest: B,
}

/// The beginning of a body.
#[derive(Debug, PartialEq, Eq)]
enum Beginning<'b> {
    /// The first message is not there yet.
    Incomplete,
    Message(&'b [u8]),
    /// It is compressed or too large.
    Unreadable,
}

impl<B: Body<Data = Bytes> + Unpin> RequestBody<B> {
    pub(super) fn new(body: B) -> RequestBody<B> {
        RequestBody {
            data: Bytes::new(),
            trailers: None,
            rest: body,
        }
    }

    /// Reads as far as the first message, which stays in the body. `None` if there is none, or
    /// none that can be read. An error means that the caller hung up.
    pub(super) async fn first_message(&mut self) -> Result<Option<Bytes>, B::Error> {
        let mut bytes = Vec::new();
        while beginning(&bytes) == Beginning::Incomplete {
            let frame = poll_fn(|cx| Pin::new(&mut self.rest).poll_frame(cx)).await;
            let Some(frame) = frame.transpose()? else {
                break;
            };
            match frame.into_data() {
                Ok(data) => bytes.extend_from_slice(&data),
                Err(trailers) => {
                    self.trailers = Some(trailers);
                    break;
                }
            }
        }
        self.data = Bytes::from(bytes);
        Ok(match beginning(&self.data) {
            Beginning::Message(message) => Some(self.data.slice_ref(message)),
            Beginning::Incomplete | Beginning::Unreadable => None,
        })
    }
}

fn beginning(bytes: &[u8]) -> Beginning<'_> {
    let Some(([is_compressed, length @ ..], rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Beginning::Incomplete;
    };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if *is_compressed != 0 || length > MAX_MESSAGE {
        return Beginning::Unreadable;
    }
    match rest.get(..length) {
        Some(message) => Beginning::Message(message),
        None => Beginning::Incomplete,
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.data.is_empty() {
            let data = std::mem::take(&mut self.data);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match self.trailers.take() {
            Some(trailers) => Poll::Ready(Some(Ok(trailers))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none() && self.rest.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use hyper::HeaderMap;

    use super::*;

    /// A body that comes in these pieces.
    struct Pieces(VecDeque<Frame<Bytes>>);

    impl Pieces {
        fn new(data: &[&'static [u8]]) -> Pieces {
            let data = data
                .iter()
                .copied()
                .map(Bytes::from_static)
                .map(Frame::data);
            Pieces(data.chain([Frame::trailers(HeaderMap::new())]).collect())
        }
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    /// The first message of a body in these pieces, and the pieces that it then has. Nothing stands
    /// for trailers.
    async fn read(pieces: &[&'static [u8]]) -> (Option<Bytes>, Vec<Option<Bytes>>) {
        let mut body = RequestBody::new(Pieces::new(pieces));
        let message = body.first_message().await.unwrap();
        let mut rest = Vec::new();
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            rest.push(frame.into_data().ok());
        }
        (message, rest)
    }

    fn some(data: &'static [u8]) -> Option<Bytes> {
        Some(Bytes::from_static(data))
    }

    /// A client may send a frame for each byte, and frames without one, forever.
    #[tokio::test]
    async fn what_was_read_is_one_piece() {
        let (message, rest) = read(&[b"\0", b"", b"\0\0\0", b"\x02", b"", b"a", b"b", b"cd"]).await;
        assert_eq!(message, some(b"ab"));
        assert_eq!(rest, [some(b"\0\0\0\0\x02ab"), some(b"cd"), None]);

        let incomplete = read(&[b"\0\0", b"\0\0\x02"]).await;
        assert_eq!(incomplete, (None, vec![some(b"\0\0\0\0\x02"), None]));
        let compressed = read(&[b"\x01", b"\0\0\0\x02ab", b"c"]).await;
        let whole = [some(b"\x01\0\0\0\x02ab"), some(b"c"), None];
        assert_eq!(compressed, (None, whole.to_vec()));
        assert_eq!(read(&[]).await, (None, vec![None]));
    }

    #[test]
    fn beginnings() {
        let large = [0, 0, 64, 0, 1];
        for (bytes, expected) in [
            (&b""[..], Beginning::Incomplete),
            (b"\0\0\0\0", Beginning::Incomplete),
            (b"\0\0\0\0\0", Beginning::Message(b"")),
            (b"\0\0\0\0\x02a", Beginning::Incomplete),
            (b"\0\0\0\0\x02ab", Beginning::Message(b"ab")),
            (b"\0\0\0\0\x02abcd", Beginning::Message(b"ab")),
            (b"\x01\0\0\0\x02ab", Beginning::Unreadable),
            (&large, Beginning::Unreadable),
        ] {
            assert_eq!(beginning(bytes), expected, "{bytes:?}");
        }
    }
}

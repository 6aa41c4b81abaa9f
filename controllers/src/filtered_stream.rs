//! A connection with a filter for its bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// What happens to the bytes of a connection.
pub trait Filter: Unpin {
    /// What a server's calls learn of their connection.
    type ConnectInfo: Clone + Send + Sync + 'static;

    /// What this connection's calls learn of it.
    fn connect_info(&self) -> Self::ConnectInfo;

    /// Called before each read, which fails with this error.
    fn before_read(&mut self, _: &mut Context<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Takes the bytes just read, which may be split anywhere, and may change them.
    fn read(&mut self, _: &mut [u8]) {}

    /// Called before each write and flush, which fail with this error.
    fn before_write(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection with a filter. What is written to it passes unchanged or not at
/// all.
#[derive(Debug)]
pub struct FilteredStream<S, F> {
    pub(crate) stream: S,
    pub(crate) filter: F,
}

impl<S: AsyncRead + Unpin, F: Filter> AsyncRead for FilteredStream<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.filter.before_read(cx)?;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.filter.read(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, F: Filter> AsyncWrite for FilteredStream<S, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.filter.before_write()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.filter.before_write()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.filter.before_write()?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S, F: Filter> Connected for FilteredStream<S, F> {
    type ConnectInfo = F::ConnectInfo;

    fn connect_info(&self) -> F::ConnectInfo {
        self.filter.connect_info()
    }
}

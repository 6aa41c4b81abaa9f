//! A connection on which the client's bytes are rewritten.

use super::authority_rewrite::AuthorityRewrite;
use crate::filtered_stream::{Filter, FilteredStream};

/// A connection that applies the [`AuthorityRewrite`] to the bytes read.
pub(super) type RewrittenStream<S> = FilteredStream<S, AuthorityRewrite>;

impl<S> RewrittenStream<S> {
    pub(super) fn new(stream: S) -> Self {
        FilteredStream {
            stream,
            filter: AuthorityRewrite::default(),
        }
    }
}

impl Filter for AuthorityRewrite {
    type ConnectInfo = ();

    fn connect_info(&self) {}

    fn read(&mut self, bytes: &mut [u8]) {
        self.feed(bytes);
    }
}

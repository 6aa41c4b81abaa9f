//! A connection on which the client's bytes are rewritten.

use super::authority_rewrite::Repair;
use crate::filtered_stream::{Filter, FilteredStream};

/// A connection that applies the [`Repair`] to the bytes read.
pub(super) type AuthorityRewrite<S> = FilteredStream<S, Repair>;

impl<S> AuthorityRewrite<S> {
    pub(super) fn new(stream: S) -> Self {
        FilteredStream {
            stream,
            filter: Repair::default(),
        }
    }
}

impl Filter for Repair {
    fn read(&mut self, bytes: &mut [u8]) {
        self.feed(bytes);
    }
}

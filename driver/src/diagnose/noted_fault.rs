//! A fault that a pool has by request.

/// A fault that an administrator has asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedFault {
    /// The fault with its time, as text.
    pub fault: String,
    /// True if nothing can be done with the pool meanwhile.
    pub total: bool,
    /// When it began, nanoseconds since the epoch.
    pub since_ns: u64,
}

//! What an open pool has lost.

/// What an open pool lost: its next opening would not find it, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The problem as one CamelCase word.
    pub reason: &'static str,
    /// True if data is lost, or will be with the next unmount or reboot.
    pub data: bool,
    /// What happened.
    pub what: String,
    /// What to do about it.
    pub to_do: String,
}

impl Lost {
    /// What happened and what to do.
    pub fn message(&self) -> String {
        format!("{}. {}", self.what, self.to_do)
    }
}

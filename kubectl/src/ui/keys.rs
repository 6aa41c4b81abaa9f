//! Who may read: tokens that work once, and the sessions that browsers get for them.
//!
//! The address has a token. While a browser starts, every user of the machine can read its command
//! line, and the token with it. So a token works once. Who is late is refused, and the terminal
//! says so. The page keeps its session in the storage of its tab. A cookie would also be sent to
//! other ports of this machine, which may be another user's.

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use uuid::Uuid;

/// A random text that gives a right.
#[derive(Clone, Debug)]
pub(super) struct Key(String);

impl Key {
    /// A new key of 244 random bits.
    fn random() -> Key {
        Key(format!(
            "{}{}",
            Uuid::new_v4().simple(),
            Uuid::new_v4().simple()
        ))
    }

    /// The key as part of an address.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares hashes: how long that takes says nothing about the key.
    fn is(&self, text: &str) -> bool {
        Sha256::digest(text) == Sha256::digest(&self.0)
    }
}

/// What the person should know.
#[derive(Clone, Debug)]
pub(super) enum Notice {
    /// A browser has used the token. The next one has this.
    Opened(Key),
    /// A used token was used again.
    UsedAgain,
}

/// Why a token gives no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Used,
    Unknown,
}

/// All keys of a server.
pub(super) struct Keys {
    state: Mutex<KeysState>,
    notices: mpsc::UnboundedSender<Notice>,
}

struct KeysState {
    /// The token of the next browser.
    token: Key,
    /// Used tokens, and whether the person knows of a second use.
    used: Vec<(Key, bool)>,
    sessions: Vec<Key>,
}

impl Keys {
    /// Makes the first token.
    pub(super) fn new() -> (Keys, mpsc::UnboundedReceiver<Notice>) {
        let (notices, received) = mpsc::unbounded_channel();
        let state = KeysState {
            token: Key::random(),
            used: Vec::new(),
            sessions: Vec::new(),
        };
        (
            Keys {
                state: Mutex::new(state),
                notices,
            },
            received,
        )
    }

    /// The token of the next browser.
    pub(super) fn token(&self) -> Key {
        self.state.lock().token.clone()
    }

    /// Gives a session for a token, once.
    pub(super) fn exchange(&self, token: &str) -> Result<Key, Refused> {
        let mut state = self.state.lock();
        if state.token.is(token) {
            let next = Key::random();
            let used = std::mem::replace(&mut state.token, next.clone());
            state.used.push((used, false));
            let session = Key::random();
            state.sessions.push(session.clone());
            let _ended = self.notices.send(Notice::Opened(next));
            return Ok(session);
        }
        let Some((_, is_said)) = state.used.iter_mut().find(|(used, _)| used.is(token)) else {
            return Err(Refused::Unknown);
        };
        if !std::mem::replace(is_said, true) {
            let _ended = self.notices.send(Notice::UsedAgain);
        }
        Err(Refused::Used)
    }

    /// True if this is the key of a session.
    pub(super) fn is_session(&self, text: &str) -> bool {
        self.state
            .lock()
            .sessions
            .iter()
            .any(|session| session.is(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_gives_one_session() {
        let (keys, mut notices) = Keys::new();
        let token = keys.token();
        assert!(!keys.is_session(token.as_str()), "a token is not a session");
        let session = keys.exchange(token.as_str()).unwrap();
        assert!(keys.is_session(session.as_str()));
        let Ok(Notice::Opened(next)) = notices.try_recv() else {
            panic!("nothing is said")
        };
        // The later ones are refused, and the person learns it once.
        for _ in 0..3 {
            assert_eq!(keys.exchange(token.as_str()).unwrap_err(), Refused::Used);
        }
        assert!(matches!(notices.try_recv(), Ok(Notice::UsedAgain)));
        assert!(notices.try_recv().is_err());
        assert_eq!(keys.exchange("").unwrap_err(), Refused::Unknown);
        assert_eq!(
            keys.exchange(session.as_str()).unwrap_err(),
            Refused::Unknown
        );
        assert!(notices.try_recv().is_err());
        // A second browser has a session of its own.
        let second = keys.exchange(next.as_str()).unwrap();
        assert!(keys.is_session(second.as_str()) && keys.is_session(session.as_str()));
    }
}

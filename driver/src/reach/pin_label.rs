//! The labels of pins. Each names the marker of its container by the nonce. Pure.

/// What the label of a pin begins with. The kernel keeps 63 bytes of a label.
const PREFIX: &str = "hostloop-pin-";
/// Length of a nonce, in hexadecimal digits.
const NONCE: usize = 32;

/// The label of the pins of the container with this marker.
pub(super) fn of(nonce: &str) -> String {
    format!("{PREFIX}{nonce}")
}

/// The nonce in the label of a pin; `None` for any other label.
pub(super) fn nonce(label: &str) -> Option<&str> {
    label.strip_prefix(PREFIX).filter(|nonce| is_nonce(nonce))
}

/// True for what a marker has as its nonce.
pub(super) fn is_nonce(word: &str) -> bool {
    word.len() == NONCE && word.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

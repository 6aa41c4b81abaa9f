//! The labels of pins. Each names the marker of its container by the nonce. Pure.

use super::markers::is_nonce;

/// What the label of a pin begins with. The kernel keeps 63 bytes of a label.
const PREFIX: &str = "hostloop-pin-";

/// The label of the pins of the container with this marker.
pub(super) fn of(nonce: &str) -> String {
    format!("{PREFIX}{nonce}")
}

/// The nonce in the label of a pin; `None` for any other label.
pub(super) fn nonce(label: &str) -> Option<&str> {
    let nonce = label.strip_prefix(PREFIX)?;

    is_nonce(nonce).then_some(nonce)
}

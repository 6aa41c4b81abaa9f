//! The cryptography of TLS in this process.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The one provider. No other is built in.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

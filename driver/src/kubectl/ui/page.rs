//! The page, if this build has one.

/// The page: one HTML file with its scripts and styles.
#[cfg(feature = "ui")]
const PAGE: Option<&str> =
    Some(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/ui/dist/index.html")));

/// This build has no page.
#[cfg(not(feature = "ui"))]
const PAGE: Option<&str> = None;

/// The page; `None` if the program was built without it.
pub(super) fn page() -> Option<&'static str> {
    PAGE
}

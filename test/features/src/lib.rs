//! No code: this package only selects features.

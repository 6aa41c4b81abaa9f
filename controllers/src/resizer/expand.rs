//! Expands volumes to the sizes that their claims request.

mod apply;
mod decide;
mod gather;

pub(super) use decide::asks;

//! Modifies volumes to the VolumeAttributesClasses that their claims request.

mod apply;
mod decide;
mod gather;

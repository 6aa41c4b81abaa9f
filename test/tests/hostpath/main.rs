//! What the scripts of projects type that install the host-path CSI driver: with hostloop's overlay
//! in place of that step, and with hostloop's image under host-path's name. `test/drop-in` has a
//! table of commands for each project. docs/compatibility.md says what can't work, and why.

mod addon;
mod image;
mod overlay;
mod site;

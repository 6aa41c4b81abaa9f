//! The Helm chart renders the objects that kustomize renders, and refuses values with mistakes. The
//! GitHub action installs these objects, too. The queries of the alerts and of the dashboard name
//! metrics that the program has. The chart's package is its folder, and comes back from a registry
//! as it was pushed. The manifest of krew names the archives of a release.

mod action;
mod drop_in;
mod krew;
mod objects;
mod packages;
mod queries;
mod same;
mod values;
mod workflows;

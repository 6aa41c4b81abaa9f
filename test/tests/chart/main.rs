//! The Helm chart renders the objects that kustomize renders, and refuses values with mistakes. The
//! queries of the alerts and of the dashboard name metrics that the program has.

mod objects;
mod queries;
mod same;
mod values;

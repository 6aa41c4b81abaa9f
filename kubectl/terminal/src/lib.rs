//! How commands print: styles, tables, and values for people.

pub mod color;
pub mod humanize;
pub(crate) mod page;
pub mod table;
pub mod terminal;

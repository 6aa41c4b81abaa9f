//! How programs print for people: styles, tables, values, and what they end with.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod color;
pub mod columns;
pub mod exit;
pub mod humanize;
pub mod page;
pub mod table;
pub mod terminal;

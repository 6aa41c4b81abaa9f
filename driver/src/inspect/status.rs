//! `hostloop status`: the pools, volumes and devices of this node, read from disk and kernel.
//!
//! It needs no driver and no lock, and changes nothing.

use std::process::ExitCode;

use crate::cli::StatusArgs;
use crate::inspect::inventory::Survey;
use crate::inspect::render::terminal;
use crate::inspect::{Error, print};
use crate::kernel::linux::Linux;
use crate::record::now_ns;

pub(crate) mod columns;
mod image_maps;
pub mod render;
pub mod report;

pub use image_maps::{ImageMap, image_maps};
pub use report::Report;

/// Takes a survey and prints it. Blocks.
pub fn run(args: &StatusArgs) -> Result<ExitCode, Error> {
    let specs = args.pools.specs()?;
    if !args.extents.is_empty() {
        let maps = image_maps(&specs, &args.pools.state_dir(), &args.extents);
        // On one line: with an indentation it would be twice as long.
        terminal::print_json_line(&maps)?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = Report::of(&Survey::take(
        &specs,
        &args.pools.state_dir(),
        &Linux::new(),
    )?);
    print(&report, args.json, |report: &Report| {
        render::text(report, terminal::width(), now_ns())
    })?;
    Ok(ExitCode::SUCCESS)
}

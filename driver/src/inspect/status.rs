//! `hostloop status`: the pools, volumes and devices of this node, read from disk and kernel.
//!
//! It needs no driver and no lock, and changes nothing.

use std::process::ExitCode;

use hostloop_terminal::terminal;

use crate::cli::StatusArgs;
use crate::inspect::inventory::Survey;
use crate::inspect::{Error, print};
use crate::kernel::linux::Linux;
use crate::reach::kernels::Kernels;
use crate::record::now_ns;

mod image_maps;
pub mod render;
pub mod report;
mod shared_kernel;

pub use hostloop_report::status::Report;
pub use image_maps::image_maps;
pub use report::report_of;

/// Takes a survey and prints it. Blocks.
pub fn run(args: &StatusArgs) -> Result<ExitCode, Error> {
    let specs = args.pools.specs()?;
    if !args.extents.is_empty() {
        let maps = image_maps(&specs, &args.pools.state_dir(), &args.extents);
        // On one line: with an indentation it would be twice as long.
        terminal::print_json_line(&maps)?;
        return Ok(ExitCode::SUCCESS);
    }
    let kernel = Linux::new();
    let survey = Survey::take(&specs, &args.pools.state_dir(), &kernel)?;
    let kernels = Kernels::at(args.kernels.clone());
    let report = Report {
        kernel: shared_kernel::kernel_of(&survey, &kernels, &kernel),
        ..report_of(&survey)
    };
    print(&report, args.json, |report: &Report| {
        render::text(report, terminal::width(), now_ns())
    })?;
    Ok(ExitCode::SUCCESS)
}

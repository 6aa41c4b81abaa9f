//! What all flags have in common.

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};

/// Completes the flags of a command. Each flag that names no environment variable gets
/// `HOSTLOOP_<FLAG>`. Each flag with the value `BOOL` gets the forms of Go programs: `--flag`,
/// `--flag=true` and `--flag=false`.
pub fn complete(command: Command) -> Command {
    command.mut_args(|arg| with_variable(with_forms(arg)))
}

fn with_forms(arg: Arg) -> Arg {
    let is_boolean = arg.get_value_names().is_some_and(|names| names == ["BOOL"]);
    if !is_boolean {
        return arg;
    }
    arg.action(ArgAction::Set)
        .value_parser(BoolishValueParser::new())
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .hide_possible_values(true)
}

fn with_variable(arg: Arg) -> Arg {
    match arg.get_long() {
        Some(flag) if arg.get_env().is_none() => {
            let variable = format!("HOSTLOOP_{}", flag.to_uppercase().replace('-', "_"));
            arg.env(variable)
        }
        _ => arg,
    }
}

//! Writes log lines to standard error, as text or as one JSON object per line.

use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use super::error::Error;
use crate::cli::{LogArgs, LogFormat};

/// Starts logging. The layer escapes what could control a terminal. Panics are logged in the same
/// format.
#[expect(
    clippy::disallowed_methods,
    reason = "log lines have a writer of their own"
)]
pub(super) fn start(args: &LogArgs) -> Result<(), Error> {
    let filter = filter(&args.log_level, args.verbosity).map_err(Error::LogLevel)?;
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match args.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init()
        .map_err(|error| Error::LogLevel(error.to_string()))?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// The log filter. `level` is a level, with the libraries limited to `info`, or a list of targets.
/// The verbosity flag of Go programs counts only for `info`.
fn filter(level: &str, verbosity: Option<u8>) -> Result<Targets, String> {
    let level = match verbosity {
        Some(5..) if level == "info" => "debug",
        _ => level,
    };
    match level.parse::<LevelFilter>() {
        Ok(level) => Ok(Targets::new()
            .with_default(level.min(LevelFilter::INFO))
            // Its warnings have whole answers of the API server in them.
            .with_target("kube_client", level.min(LevelFilter::ERROR))
            .with_target("hostloop", level)
            .with_target("hostloop_driver", level)),
        Err(_) => level
            .parse::<Targets>()
            .map_err(|error| format!("{level:?}: {error}")),
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic
        .location()
        .map(ToString::to_string)
        .unwrap_or_default();
    let thread = std::thread::current();
    let payload = panic.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let backtrace = std::backtrace::Backtrace::capture();
    tracing::error!(
        place,
        thread = thread.name().unwrap_or_default(),
        %backtrace,
        "panic: {}",
        message.unwrap_or("(no message)")
    );
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn levels_and_targets() {
        for (level, verbosity, target, at, logged) in [
            ("info", None, "hostloop_driver::storage", Level::INFO, true),
            (
                "info",
                None,
                "hostloop_driver::storage",
                Level::DEBUG,
                false,
            ),
            ("debug", None, "hostloop_driver", Level::DEBUG, true),
            ("debug", None, "hostloop_kernel::linux", Level::DEBUG, true),
            ("debug", None, "h2::codec", Level::DEBUG, false),
            ("debug", None, "h2::codec", Level::INFO, true),
            ("error", None, "h2", Level::WARN, false),
            ("debug", None, "kube_client::client", Level::WARN, false),
            ("info", None, "kube_client::client", Level::ERROR, true),
            ("off", None, "kube_client::client", Level::ERROR, false),
            ("info", Some(5), "hostloop_driver", Level::DEBUG, true),
            ("info", Some(4), "hostloop_driver", Level::DEBUG, false),
            ("warn", Some(5), "hostloop_driver", Level::INFO, false),
            ("warn,h2=trace", None, "h2::codec", Level::TRACE, true),
            ("warn,h2=trace", None, "hostloop_driver", Level::INFO, false),
        ] {
            let filter = filter(level, verbosity).unwrap();
            let enabled = filter.would_enable(target, &at);
            assert_eq!(enabled, logged, "{level} {verbosity:?} {target} {at}");
        }
        assert!(filter("h2=loud", None).is_err());
    }
}

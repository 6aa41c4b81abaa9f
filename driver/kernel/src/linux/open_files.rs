//! How many files the process may have open.
//!
//! Old programs know only descriptors below 1,024, so systems give this as a soft limit, and a
//! process that knows better raises it. The programs that it starts get the former limit back.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit before it was raised.
static FORMER: OnceLock<u64> = OnceLock::new();

/// The limit of open files, and the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// The limit now; `None` for no limit.
    pub limit: Option<u64>,
    /// The former limit, if it was another one.
    pub from: Option<u64>,
}

/// The limit of open files; `None` for no limit.
pub fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises the soft limit to the hard limit.
pub fn raise() -> io::Result<Raised> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(Raised {
            limit: current,
            from: None,
        });
    }
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )?;
    if let Some(former) = current {
        FORMER.get_or_init(|| former);
    }
    Ok(Raised {
        limit: maximum,
        from: current,
    })
}

/// The limit of the programs that the process starts, if it is another one.
pub(super) fn former() -> Option<u64> {
    FORMER.get().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_once() {
        let before = getrlimit(Resource::Nofile);
        let raised = raise().unwrap();
        assert_eq!((limit(), raised.limit), (before.maximum, before.maximum));
        assert_eq!(
            raise().unwrap(),
            Raised {
                limit: before.maximum,
                from: None
            }
        );
    }
}

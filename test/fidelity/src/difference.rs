//! What differs between a simulated and a real cluster.

use std::fmt;

use crate::cluster_state::EVENT;

/// One of the two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Simulator,
    Cluster,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Simulator => "in the simulator",
            Side::Cluster => "on the cluster",
        })
    }
}

/// A difference between a simulated and a real cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// The API servers answered a request in different ways.
    Answer {
        request: String,
        simulated: u16,
        real: u16,
        /// What the real one said.
        message: String,
    },
    /// Only one of them has the object.
    Object { object: String, only: Side },
    /// A field differs. It is empty where it does not exist.
    Field {
        object: String,
        field: String,
        simulated: String,
        real: String,
    },
}

impl Difference {
    /// What the object is called that differs; none for an answer.
    pub fn object(&self) -> Option<&str> {
        match self {
            Difference::Answer { .. } => None,
            Difference::Object { object, .. } | Difference::Field { object, .. } => Some(object),
        }
    }

    /// The reason of an event that only this side has sent.
    pub(crate) fn event_of(&self, side: Side) -> Option<&str> {
        let Difference::Field {
            field,
            simulated,
            real,
            ..
        } = self
        else {
            return None;
        };
        let others = match side {
            Side::Simulator => real,
            Side::Cluster => simulated,
        };
        field.strip_prefix(EVENT).filter(|_| others.is_empty())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Answer {
                request,
                simulated,
                real,
                message,
            } => {
                write!(
                    f,
                    "{request}: the simulator answered {simulated}, and the cluster {real}"
                )?;
                if !message.is_empty() {
                    write!(f, " ({message})")?;
                }
                Ok(())
            }
            Difference::Object { object, only } => write!(f, "{object} exists only {only}"),
            Difference::Field {
                object,
                field,
                simulated,
                real,
            } => {
                for side in [Side::Simulator, Side::Cluster] {
                    if let Some(reason) = self.event_of(side) {
                        return write!(f, "{object}: the event {reason} was sent only {side}");
                    }
                }
                write!(
                    f,
                    "{object}: {field} is {} in the simulator and {} on the cluster",
                    or_nothing(simulated),
                    or_nothing(real)
                )
            }
        }
    }
}

fn or_nothing(value: &str) -> &str {
    if value.is_empty() { "missing" } else { value }
}

#[cfg(test)]
pub(crate) mod tests {
    use rstest::rstest;

    use super::*;

    pub(crate) fn field(field: &str, simulated: &str, real: &str) -> Difference {
        Difference::Field {
            object: "claim c1".to_owned(),
            field: field.to_owned(),
            simulated: simulated.to_owned(),
            real: real.to_owned(),
        }
    }

    #[rstest]
    #[case::field(
        field("phase", "Bound", "Pending"),
        "claim c1: phase is Bound in the simulator and Pending on the cluster"
    )]
    #[case::missing_field(
        field("capacity", "", "10485760"),
        "claim c1: capacity is missing in the simulator and 10485760 on the cluster"
    )]
    #[case::event(
        field("event Resizing", "", "sent"),
        "claim c1: the event Resizing was sent only on the cluster"
    )]
    #[case::object(
        Difference::Object { object: "pod p1".to_owned(), only: Side::Simulator },
        "pod p1 exists only in the simulator"
    )]
    #[case::answer(
        Difference::Answer {
            request: "POST /api/v1/namespaces/u/pods p1".to_owned(),
            simulated: 201,
            real: 422,
            message: "invalid".to_owned(),
        },
        "POST /api/v1/namespaces/u/pods p1: the simulator answered 201, and the cluster 422 \
         (invalid)"
    )]
    fn a_difference_is_a_sentence(#[case] difference: Difference, #[case] expected: &str) {
        assert_eq!(difference.to_string(), expected);
    }
}

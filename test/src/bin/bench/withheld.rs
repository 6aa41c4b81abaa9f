//! CPU time that the host of a virtual machine withholds: something was ready to run here while
//! others ran there. Figures with a high value describe the host.

/// The CPUs' times since the start of the machine, all together, in the unit of `/proc/stat`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cpus {
    ran: u64,
    withheld: u64,
}

impl Cpus {
    pub(crate) fn now() -> Cpus {
        let text = std::fs::read_to_string("/proc/stat").expect("/proc is there");
        Cpus::parse(&text).expect("/proc/stat begins with the times of all CPUs together")
    }

    /// Order in proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal. The time of
    /// guests of this machine is in the first two.
    fn parse(stat: &str) -> Option<Cpus> {
        let times = stat.lines().next()?.strip_prefix("cpu ")?;
        let times: Result<Vec<u64>, _> = times.split_whitespace().map(str::parse).collect();
        match times.ok()?.as_slice() {
            &[user, nice, system, _, _, irq, softirq, withheld, ..] => Some(Cpus {
                ran: user + nice + system + irq + softirq,
                withheld,
            }),
            _ => None,
        }
    }

    /// CPU time withheld since then, in percent of the time that processes wanted.
    pub(crate) fn withheld_since(self, before: Cpus) -> f64 {
        let withheld = self.withheld.saturating_sub(before.withheld);
        let ran = self.ran.saturating_sub(before.ran);
        match ran + withheld {
            0 => 0.0,
            wanted => withheld as f64 / wanted as f64 * 100.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let stat = "cpu  10 1 20 900 50 3 4 30 5 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let (ran, withheld) = (38, 30);
        assert_eq!(Cpus::parse(stat), Some(Cpus { ran, withheld }));
        for other in ["", "cpu  1 2 3\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu  a\n"] {
            assert_eq!(Cpus::parse(other), None, "{other:?}");
        }
        Cpus::now();
    }

    #[test]
    fn withheld_is_a_part_of_what_was_wanted() {
        let at = |ran, withheld| Cpus { ran, withheld };
        for (before, now, percent) in [
            (at(5, 5), at(5, 5), 0.0),
            (at(0, 0), at(100, 0), 0.0),
            (at(10, 10), at(85, 35), 25.0),
            (at(10, 10), at(10, 20), 100.0),
            // Some hosts' counters go back.
            (at(10, 10), at(20, 5), 0.0),
        ] {
            let is = now.withheld_since(before);
            assert_eq!(is, percent, "{before:?} {now:?}");
        }
    }
}

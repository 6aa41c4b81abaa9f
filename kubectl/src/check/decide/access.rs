//! The rights of hostloop's accounts.

use std::collections::BTreeMap;

use super::unknown;
use crate::check::facts::{Facts, Right};
use crate::check::line::{Line, names};

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let mut accounts: BTreeMap<&str, Vec<&Right>> = BTreeMap::new();
    for right in &facts.rights {
        accounts.entry(&right.account).or_default().push(right);
    }
    accounts
        .into_iter()
        .map(|(account, rights)| line(account, &rights))
        .collect()
}

fn line(account: &str, rights: &[&Right]) -> Line {
    let missing: Vec<&str> = rights
        .iter()
        .filter(|right| right.allowed == Ok(false))
        .map(|right| right.what.as_str())
        .collect();
    if !missing.is_empty() {
        return Line::failed(
            format!("Account {account} may not {}", names(missing)),
            "Its roles or their bindings were changed. Run `kubectl hostloop install` again.",
        );
    }
    // A missing right of the person's hides all answers in the same way.
    match rights.iter().find_map(|right| right.allowed.as_ref().err()) {
        Some(why) => unknown(&format!("Rights of account {account}"), why),
        None => Line::ok(format!("Account {account} has its {} rights", rights.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::decide::testing::{good, marks};
    use crate::check::facts::{Fact, Unknown};
    use crate::check::line::Mark::*;

    fn right(account: &str, what: &str, allowed: Fact<bool>) -> Right {
        Right {
            account: account.into(),
            what: what.into(),
            allowed,
        }
    }

    #[test]
    fn each_account_has_a_line() {
        let mut facts = good();
        facts.rights = vec![
            right("hostloop", "get nodes", Ok(true)),
            right("hostloop-controller", "get nodes", Ok(true)),
            right("hostloop", "patch events", Ok(false)),
            right("other", "get nodes", Err(Unknown::Forbidden("ask".into()))),
        ];
        let lines = lines(&facts);
        assert_eq!(marks(&lines), [Failed, Passed, Skipped]);
        assert_eq!(lines[0].text, "Account hostloop may not patch events");
        assert_eq!(
            lines[1].text,
            "Account hostloop-controller has its 1 rights"
        );
    }
}

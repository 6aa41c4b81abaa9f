//! The mutants that are chosen, and the files that have them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::path::Path;

use crate::checkout::Texts;
use crate::edit::Edit;
use crate::mutant::{Genre, Mutant};
use crate::order::shuffle;
use crate::rewriting::Rewriting;

/// Some mutants of a list, in random order.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) chosen: Vec<Mutant>,
    /// Those that came before the last chosen one, and why each is left out.
    pub(crate) left_out: Vec<(Mutant, String)>,
    edits: BTreeMap<String, Vec<(u32, Edit)>>,
}

/// The code of a mutant in the copy: its number, file and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) number: u32,
    pub(crate) file: String,
    pub(crate) bytes: Range<usize>,
}

impl Plan {
    /// Chooses so many mutants that can be written into the copy. `unviable` has the places and
    /// titles of those that the compiler refused.
    pub(crate) fn of(
        checkout: &Path,
        mut mutants: Vec<Mutant>,
        unviable: &BTreeSet<(String, String)>,
        count: usize,
        seed: u64,
    ) -> io::Result<Plan> {
        shuffle(&mut mutants, seed);
        let mut files: HashMap<String, syn::File> = HashMap::new();
        let mut plan = Plan::default();
        for mutant in mutants {
            if plan.chosen.len() == count {
                break;
            }
            if unviable.contains(&(mutant.place(), mutant.title())) {
                plan.left_out
                    .push((mutant, "the compiler refuses it".to_owned()));
                continue;
            }
            if !files.contains_key(&mutant.file) {
                let text = std::fs::read_to_string(checkout.join(&mutant.file))?;
                files.insert(mutant.file.clone(), parsed(&mutant.file, &text)?);
            }
            match Edit::of(&mutant, &files[&mutant.file]) {
                Ok(edit) => {
                    let edits = plan.edits.entry(mutant.file.clone()).or_default();
                    edits.push((mutant.number, edit));
                    plan.chosen.push(mutant);
                }
                Err(why) => plan.left_out.push((mutant, why.to_string())),
            }
        }
        Ok(plan)
    }

    /// Writes the mutants into their files. Returns where each is then.
    pub(crate) fn write(self, checkout: &Path, texts: &mut Texts) -> io::Result<Vec<Region>> {
        let mut regions = Vec::new();
        for (file, edits) in self.edits {
            let source = std::fs::read_to_string(checkout.join(&file))?;
            let rewriting = Rewriting::of(&source, edits);
            parsed(&file, &rewriting.text)?;
            for (number, bytes) in rewriting.regions {
                let file = file.clone();
                regions.push(Region {
                    number,
                    file,
                    bytes,
                });
            }
            texts.insert(file.into(), rewriting.text);
        }
        Ok(regions)
    }
}

fn parsed(file: &str, text: &str) -> io::Result<syn::File> {
    syn::parse_file(text).map_err(|error| {
        let at = error.span().start();
        io::Error::other(format!("{file}:{}:{}: {error}", at.line, at.column + 1))
    })
}

/// How many mutants there are, and of which genres.
pub(crate) fn summary(mutants: &[Mutant]) -> String {
    let mut genres: BTreeMap<Genre, usize> = BTreeMap::new();
    for mutant in mutants {
        *genres.entry(mutant.genre).or_default() += 1;
    }
    let genres: Vec<String> = genres
        .iter()
        .map(|(genre, count)| format!("{count} {genre:?}"))
        .collect();
    format!("{} mutants: {}", mutants.len(), genres.join(", "))
}

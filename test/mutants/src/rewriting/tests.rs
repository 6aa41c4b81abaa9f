use proc_macro2::LineColumn;

use super::*;
use crate::edit::Unviable;
use crate::mutant::{Genre, Mutant};

/// A mutant: its genre, the code at its place, and the code that it has instead.
type Case<'a> = (Genre, &'a str, &'a str);

/// The mutant at the first place that has this code.
fn mutant(source: &str, number: u32, (genre, code, replacement): Case<'_>) -> Mutant {
    let at = source.find(code).expect("the source has the code");
    let start = LineColumn {
        line: source[..at].matches('\n').count() + 1,
        column: source[..at]
            .chars()
            .rev()
            .take_while(|char| *char != '\n')
            .count(),
    };
    Mutant::of(number, genre, replacement, start)
}

/// Switches on read as `$1`, so that a case is short.
fn rewritten(source: &str, mutants: &[Case<'_>]) -> String {
    let file = syn::parse_file(source).expect("the source is Rust");
    let edits: Vec<_> = (1..)
        .zip(mutants)
        .map(|(number, case)| {
            let mutant = mutant(source, number, *case);
            let edit = Edit::of(&mutant, &file);
            (
                number,
                edit.unwrap_or_else(|why| panic!("{case:?} in {source}: {why}")),
            )
        })
        .collect();
    let rewriting = Rewriting::of(source, edits);
    syn::parse_file(&rewriting.text).expect("the new text is Rust");
    for (number, range) in &rewriting.regions {
        assert!(rewriting.text[range.clone()].contains(&is_active(*number)));
    }
    rewriting
        .text
        .replace("::hostloop_events::is_mutant(", "$")
        .replace("$1)", "$1")
        .replace("$2)", "$2")
        .replace("$3)", "$3")
}

#[test]
fn a_mutant_is_written_beside_the_code() {
    use Genre::*;
    let cases: &[(&str, &[Case<'_>], &str)] = &[
        (
            "fn f() -> u8 { 1 }",
            &[
                (FnValue, "1 }", "0"),
                (FnValue, "1 }", "Default::default()"),
            ],
            "fn f() -> u8 { if $1 { return 0; } if $2 { return Default::default(); } 1 }",
        ),
        (
            "impl A {\n    fn f(&self) {\n        // Why.\n        g();\n    }\n}",
            &[(FnValue, "g();", "()")],
            "impl A {\n    fn f(&self) { if $1 { return (); }\n        // Why.\n        g();\n    }\n}",
        ),
        (
            "fn f(a: u8) -> bool { a < 1 }",
            &[(BinaryOperator, "<", "=="), (BinaryOperator, "<", "<=")],
            "fn f(a: u8) -> bool { (if $1 { a == 1 } else if $2 { a <= 1 } else { a < 1 }) }",
        ),
        // The multiplication stays one operand.
        (
            "fn f() -> u8 { a + b % c }",
            &[(BinaryOperator, "+", "*")],
            "fn f() -> u8 { (if $1 { a * (b % c) } else { a + b % c }) }",
        ),
        (
            "fn f() -> bool { a as u8 == b }",
            &[(BinaryOperator, "==", "<")],
            "fn f() -> bool { (if $1 { (a as u8) < b } else { a as u8 == b }) }",
        ),
        (
            "fn f() { a += 1; }",
            &[(BinaryOperator, "+=", "-=")],
            "fn f() { (if $1 { a -= 1 } else { a += 1 }); }",
        ),
        // One expression in the other: the inner one has its mutant in both.
        (
            "fn f() -> bool { a && b || c }",
            &[(BinaryOperator, "&&", "||"), (BinaryOperator, "||", "&&")],
            "fn f() -> bool { (if $2 { ((if $1 { a || b } else { a && b })) && c } else \
             { (if $1 { a || b } else { a && b }) || c }) }",
        ),
        (
            "fn f() -> bool { !a }",
            &[(FnValue, "!a", "true"), (UnaryOperator, "!", "")],
            "fn f() -> bool { if $1 { return true; } (if $2 { a } else { !a }) }",
        ),
        // A let may stand beside a mutant.
        (
            "fn f() { if let Some(a) = b && a > 1 {} }",
            &[(BinaryOperator, ">", "<")],
            "fn f() { if let Some(a) = b && (if $1 { a < 1 } else { a > 1 }) {} }",
        ),
        (
            "fn f() { match a { A | B => 1, _ => 2 } }",
            &[(MatchArm, "A |", "")],
            "fn f() { match a { A | B if !$1 => 1, _ => 2 } }",
        ),
        (
            "fn f() { match a { b if b > 1 => 1, _ => 2 } }",
            &[
                (MatchArmGuard, "b > 1", "true"),
                (MatchArmGuard, "b > 1", "false"),
                (BinaryOperator, ">", "<"),
            ],
            "fn f() { match a { b if (if $1 { true } else if $2 { false } else if $3 { b < 1 } \
             else { b > 1 }) => 1, _ => 2 } }",
        ),
        (
            "fn f() -> A { A { b: !c, d, ..e } }",
            &[
                (StructField, "b: !c", ""),
                (UnaryOperator, "!", ""),
                (StructField, "d, ", ""),
            ],
            "fn f() -> A { (if $1 { A {  d, ..e } } else if $3 { A { b: (if $2 { c } else { !c }),  \
             ..e } } else { A { b: (if $2 { c } else { !c }), d, ..e } }) }",
        ),
        // Columns count characters.
        (
            "fn f() -> bool { \"ä\" == a }",
            &[(BinaryOperator, "==", "!=")],
            "fn f() -> bool { (if $1 { \"ä\" != a } else { \"ä\" == a }) }",
        ),
        // A closure and a block with a function of its own.
        (
            "fn f() -> bool { a(|| { fn g() -> u8 { 1 } g() }) == b }",
            &[(FnValue, "1 }", "0"), (BinaryOperator, "==", "!=")],
            "fn f() -> bool { (if $2 { a(|| { fn g() -> u8 { if $1 { return 0; } 1 } g() }) != b } \
             else { a(|| { fn g() -> u8 { if $1 { return 0; } 1 } g() }) == b }) }",
        ),
    ];
    for (source, mutants, expected) in cases {
        assert_eq!(&rewritten(source, mutants), expected);
    }
}

#[test]
fn what_no_variable_switches_on_is_refused() {
    use Genre::*;
    let cases: &[(&str, Case<'_>, Unviable)] = &[
        (
            "const fn f() -> u8 { 1 }",
            (FnValue, "1", "0"),
            Unviable::Constant,
        ),
        (
            "const A: u8 = 1 + 2;",
            (BinaryOperator, "+", "-"),
            Unviable::Constant,
        ),
        (
            "fn f() { [0; 1 + 2] }",
            (BinaryOperator, "+", "-"),
            Unviable::Constant,
        ),
        (
            "fn f() -> impl Iterator<Item = u8> { g() }",
            (FnValue, "g", "::std::iter::empty()"),
            Unviable::OpaqueType,
        ),
        (
            "fn f() { if let Some(a) = b && c && a {} }",
            (BinaryOperator, "&& a", "||"),
            Unviable::Let,
        ),
        (
            "fn f() { match a { A => 1, _ if b => 2, B => 3 } }",
            (MatchArm, "A =>", ""),
            Unviable::NoCatchAll,
        ),
        (
            "fn f() { g!(a == b) }",
            (BinaryOperator, "==", "!="),
            Unviable::NotFound,
        ),
    ];
    for (source, case, expected) in cases {
        let file = syn::parse_file(source).unwrap();
        let edit = Edit::of(&mutant(source, 1, *case), &file);
        assert_eq!(edit, Err(*expected), "{source}");
    }
}

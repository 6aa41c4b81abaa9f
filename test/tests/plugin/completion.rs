//! The shells read the scripts of `completion`, and complete with them.

use hostloop_test::child;
use hostloop_test::machine::{not_run, run, text, which};
use hostloop_test::plugin::binary;
use hostloop_test::scratch::Scratch;

/// Completes the words after the script and the name, and prints the candidates.
const BASH: &str = r#"
source "$1"
name=$2
shift 2
COMP_WORDS=("$name" "$@") COMP_CWORD=$#
specification=$(complete -p "$name")
[[ $specification =~ -F\ ([^ ]+) ]]
"${BASH_REMATCH[1]}" "$name" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

/// Words of a command line, and the candidates for the last one.
const CASES: [(&[&str], &[&str]); 6] = [
    (&["unin"], &["uninstall"]),
    (&["chec"], &["check"]),
    (
        &["install", "--snapshot-controller", ""],
        &["auto", "yes", "no"],
    ),
    (&["install", "--def"], &["--default-class"]),
    (
        &["status", "--output", ""],
        &["wide", "json", "yaml", "name"],
    ),
    (&["check", "-o", ""], &["wide", "json", "yaml"]),
];

/// The name of the program.
const NAME: &str = "kubectl-hostloop";

/// Writes the script for a shell.
fn script(scratch: &Scratch, shell: &str) -> String {
    let output = child::command(binary())
        .args(["completion", shell])
        .output();
    let output = output.expect("the program can be run");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let script = String::from_utf8(output.stdout).expect("UTF-8");
    text(&scratch.file(&format!("{NAME}.{shell}"), &script)).to_owned()
}

#[test]
fn shells_read_the_scripts_and_complete() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish"] {
        if which(shell).is_none() {
            not_run(
                &format!("completion in {shell}"),
                &format!("{shell} is not installed"),
            );
            continue;
        }
        let script = script(&scratch, shell);
        run(shell, &["-n", &script]);
        for (words, expected) in CASES {
            let Some(candidates) = candidates(shell, &script, words) else {
                continue;
            };
            for word in expected {
                let found = candidates.iter().any(|candidate| candidate == word);
                assert!(found, "{shell} {words:?}: {candidates:?}");
            }
            let install = candidates.iter().any(|candidate| candidate == "install");
            assert!(!install, "{shell} {words:?}: {candidates:?}");
        }
    }
}

/// The candidates for the last word. zsh completes at a terminal alone.
fn candidates(shell: &str, script: &str, words: &[&str]) -> Option<Vec<String>> {
    let printed = match shell {
        "bash" => run(
            "bash",
            &[&["-c", BASH, "bash", script, NAME][..], words].concat(),
        ),
        "fish" => {
            let complete = "source $argv[1]; complete --do-complete \"$argv[2..]\"";
            run(
                "fish",
                &[&["--no-config", "-c", complete, script, NAME][..], words].concat(),
            )
        }
        _ => return None,
    };
    let word = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
    Some(printed.lines().map(word).collect())
}

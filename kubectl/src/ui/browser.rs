//! Opens the page, or says how to reach it.

use std::io;
use std::process::{Command, Stdio};

use hostloop_terminal::terminal;

use super::keys::{Key, Notice};
use crate::platform::BROWSER;

/// Where the page is for one browser.
pub(super) struct Address {
    port: u16,
    url: String,
}

impl Address {
    /// The address with this token. Browsers do not send what is after the `#`.
    pub(super) fn new(port: u16, token: &Key) -> Address {
        Address {
            port,
            url: format!("http://127.0.0.1:{port}/#token={}", token.as_str()),
        }
    }
}

/// Where the program runs, as far as it matters for the browser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// SSH_CONNECTION: client, its port, server, its port.
    ssh: Option<String>,
    /// The name of the user.
    user: Option<String>,
    /// True if the person wants no browser.
    no_open: bool,
}

/// What to do about the browser.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Opening {
    /// Open it here.
    Open,
    /// Say what to do.
    Say(Option<String>),
}

impl Place {
    /// Reads the environment.
    pub(super) fn of_environment(no_open: bool) -> Place {
        Place {
            ssh: variable("SSH_CONNECTION"),
            user: variable("USER"),
            no_open,
        }
    }

    /// Over SSH, a browser would be on another machine, and reaches the port through a tunnel.
    fn decide(&self, port: u16) -> Opening {
        let server = self
            .ssh
            .as_deref()
            .map(|ssh| ssh.split(' ').nth(2).unwrap_or("HOST"));
        let tunnel = server.map(|server| {
            let user = self
                .user
                .as_deref()
                .map(|user| format!("{user}@"))
                .unwrap_or_default();
            format!("ssh -N -L {port}:127.0.0.1:{port} {user}{server}")
        });
        if tunnel.is_none() && !self.no_open {
            Opening::Open
        } else {
            Opening::Say(tunnel)
        }
    }
}

/// A variable of the environment that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Opens a browser if there is one here, and prints the address in any case.
pub(super) fn open(place: &Place, address: &Address) -> io::Result<()> {
    let opening = place.decide(address.port);
    let mut lines = Vec::new();
    if let Opening::Say(Some(tunnel)) = &opening {
        let tunnel = [
            "On your machine, run:",
            &format!("  {tunnel}"),
            "Then open:",
        ];
        lines.extend(tunnel.map(str::to_owned));
    }
    lines.push(address.url.clone());
    lines.push("The address works once: give it to no one. Ctrl-C ends the page.".to_owned());
    terminal::print(&lines)?;
    if opening == Opening::Open && !started(&address.url) {
        let line = "No browser could be opened here: open the address yourself.";
        terminal::print(&[line.to_owned()])?;
    }
    Ok(())
}

/// Says what became of an address.
pub(super) fn say(port: u16, notice: &Notice) -> io::Result<()> {
    terminal::print(&match notice {
        Notice::Opened(next) => {
            vec![
                "The page is open in a browser. For another one, open:".to_owned(),
                Address::new(port, next).url,
            ]
        }
        Notice::UsedAgain => vec![
            "An address that was used before was opened again, and refused.".to_owned(),
            "If that was you, and you see no page, another user of this machine sees it: end it \
             with Ctrl-C, and start again with --no-open."
                .to_owned(),
        ],
    })
}

/// Starts the program of the system that opens addresses. It does not wait for the program.
fn started(address: &str) -> bool {
    let (program, arguments) = BROWSER;
    #[expect(clippy::disallowed_methods, reason = "a person's browser")]
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        return false;
    };
    std::thread::spawn(move || child.wait());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_ssh_the_command_for_the_tunnel_is_said() {
        let place = |ssh: Option<&str>, user: Option<&str>, no_open| Place {
            ssh: ssh.map(str::to_owned),
            user: user.map(str::to_owned),
            no_open,
        };
        let tunnel = |to: &str| Opening::Say(Some(format!("ssh -N -L 80:127.0.0.1:80 {to}")));
        let ssh = Some("192.0.2.1 50000 192.0.2.2 22");
        for (place, opening) in [
            (place(None, None, false), Opening::Open),
            (place(None, None, true), Opening::Say(None)),
            (place(ssh, Some("u"), false), tunnel("u@192.0.2.2")),
            (place(ssh, None, true), tunnel("192.0.2.2")),
            (place(Some("odd"), None, false), tunnel("HOST")),
        ] {
            assert_eq!(place.decide(80), opening, "{place:?}");
        }
    }
}

//! Where a password comes from: standard input, the environment, or the person at the
//! terminal. Never from an argument, where every process on the machine can read it.

use std::io::{self, IsTerminal, Read};

use crate::failure::{Failure, describe};

/// The environment variable that holds a password.
pub(crate) const VARIABLE: &str = "TIDEWATER_PASSWORD";
/// What the server accepts at most.
const MAX_BYTES: u64 = 1_024;

/// How a command takes its password.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PasswordArgs {
    /// Read the password from standard input
    ///
    /// The first line of it. Without this option the password is taken from the
    /// environment variable TIDEWATER_PASSWORD, or asked for at the terminal.
    #[arg(long)]
    pub(crate) password_stdin: bool,
}

impl PasswordArgs {
    /// The password, if it was given beforehand: nobody is asked.
    pub(crate) fn given(&self) -> Result<Option<String>, Failure> {
        if self.password_stdin {
            return read_line(io::stdin().lock()).map(Some);
        }
        match std::env::var(VARIABLE) {
            Ok(password) if password.is_empty() => Ok(None),
            Ok(password) => Ok(Some(password)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Failure::usage(format!("{VARIABLE} is not UTF-8"), ""))
            }
        }
    }

    /// The password of somebody who signs in.
    pub(crate) fn obtain(&self, prompt: &str) -> Result<String, Failure> {
        match self.given()? {
            Some(password) => Ok(password),
            None => ask(prompt),
        }
    }

    /// A password to be set: whoever types it types it twice.
    pub(crate) fn obtain_new(&self, prompt: &str) -> Result<String, Failure> {
        if let Some(password) = self.given()? {
            return Ok(password);
        }
        let password = ask(prompt)?;
        if ask("Again: ")? == password {
            Ok(password)
        } else {
            Err(Failure::usage(
                "the two passwords differ",
                "run the command again",
            ))
        }
    }
}

/// Whether there is a person to ask.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

fn ask(prompt: &str) -> Result<String, Failure> {
    if !can_ask() {
        return Err(Failure::usage(
            "a password is needed, and there is no terminal to ask for it",
            format!("pipe it in with --password-stdin, or set {VARIABLE}"),
        ));
    }
    let password = rpassword::prompt_password(prompt).map_err(|error| {
        Failure::usage(
            format!("cannot read the password: {}", describe(&error)),
            format!("pipe it in with --password-stdin, or set {VARIABLE}"),
        )
    })?;
    checked(password)
}

/// The first line, without its end.
fn read_line(reader: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    reader
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| {
            Failure::usage(
                format!(
                    "cannot read the password from standard input: {}",
                    describe(&error)
                ),
                "",
            )
        })?;
    let line = text.split('\n').next().unwrap_or_default();
    checked(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

fn checked(password: String) -> Result<String, Failure> {
    if password.is_empty() {
        Err(Failure::usage("the password is empty", ""))
    } else if password.len() as u64 > MAX_BYTES {
        Err(Failure::usage(
            format!("the password is longer than {MAX_BYTES} bytes"),
            "",
        ))
    } else {
        Ok(password)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piped_password_is_the_first_line_without_its_end() {
        for (text, password) in [
            ("secret", "secret"),
            ("secret\n", "secret"),
            ("secret\r\n", "secret"),
            (" two words \nnext line", " two words "),
        ] {
            assert_eq!(read_line(text.as_bytes()).unwrap(), password);
        }
    }

    #[test]
    fn an_empty_or_endless_password_is_an_error() {
        assert!(read_line(&b""[..]).is_err());
        assert!(read_line(&b"\nsecret"[..]).is_err());
        assert!(read_line(io::repeat(b'x')).is_err());
    }
}

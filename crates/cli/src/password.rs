//! Where a password comes from: standard input, the environment, or the person at the
//! terminal. Never from an argument, where every process on the machine can read it.

use std::io::{self, IsTerminal, Read};

use tidewater_terminal::{Failure, describe};

/// The environment variable that holds a password.
pub(crate) const VARIABLE: &str = "TIDEWATER_PASSWORD";
/// The one that holds a password which takes another one's place.
const NEXT_VARIABLE: &str = "TIDEWATER_NEW_PASSWORD";
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
        match self.password_stdin {
            true => read_line(io::stdin().lock()).map(Some),
            false => in_environment(VARIABLE),
        }
    }

    /// The password of somebody who signs in.
    pub(crate) fn obtain(&self, prompt: &str) -> Result<String, Failure> {
        match self.given()? {
            Some(password) => Ok(password),
            None => ask(prompt, VARIABLE),
        }
    }

    /// A password to be set: whoever types it types it twice.
    pub(crate) fn obtain_new(&self, prompt: &str) -> Result<String, Failure> {
        match self.given()? {
            Some(password) => Ok(password),
            None => ask_twice(prompt, VARIABLE),
        }
    }

    /// The password that takes the place of the one that somebody signs in with.
    pub(crate) fn obtain_next(prompt: &str) -> Result<String, Failure> {
        match in_environment(NEXT_VARIABLE)? {
            Some(password) => checked(password),
            None => ask_twice(prompt, NEXT_VARIABLE),
        }
    }
}

fn in_environment(variable: &str) -> Result<Option<String>, Failure> {
    match std::env::var(variable) {
        Ok(password) => Ok(Some(password).filter(|it| !it.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::usage(format!("{variable} is not UTF-8"), ""))
        }
    }
}

fn ask_twice(prompt: &str, variable: &str) -> Result<String, Failure> {
    let password = ask(prompt, variable)?;
    match ask("Again: ", variable)? == password {
        true => Ok(password),
        false => Err(Failure::usage(
            "the two passwords differ",
            "run the command again",
        )),
    }
}

/// Whether there is a person to ask.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

fn ask(prompt: &str, variable: &str) -> Result<String, Failure> {
    let hint = match variable {
        VARIABLE => format!("pipe it in with --password-stdin, or set {VARIABLE}"),
        _ => format!("set {variable}"),
    };
    if !can_ask() {
        return Err(Failure::usage(
            "a password is needed, and there is no terminal to ask for it",
            hint,
        ));
    }
    let password = rpassword::prompt_password(prompt).map_err(|error| {
        Failure::usage(
            format!("cannot read the password: {}", describe(&error)),
            hint,
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

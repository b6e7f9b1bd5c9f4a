//! `tidewater user`: who may sign in.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde::Serialize;
use tidewater_centre::records::UserRecord;
use tidewater_terminal::output::{self, TextTable};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, with_exit_codes};

use crate::centre::OpenCentre;
use crate::command::user_import::{self, ImportArgs};
use crate::command::user_name::check_name;
use crate::password::PasswordArgs;

const HELP: &str = with_exit_codes!(
    "\
Examples:
  tidewater user add nancy                                  # asks for the password
  tidewater user add nancy --password-stdin < password.txt
  TIDEWATER_PASSWORD=... tidewater user set-password nancy
  tidewater user add nancy --no-password                    # signs in by docs/sign-in.md
  tidewater user import users.csv              # with the header: name,password
  tidewater user disable nancy
  tidewater user list --json"
);

/// Add, remove, disable or list the users who may sign in
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct UserArgs {
    #[command(subcommand)]
    action: UserAction,
}

#[derive(Debug, Subcommand)]
enum UserAction {
    /// Add a user
    ///
    /// The name is what partition queries see as {s.username}.
    #[command(after_help = HELP)]
    Add(UserAddArgs),
    /// Add the users of a CSV file, all of them or none
    ///
    /// The first line names the columns: name, and password or password_hash (argon2id in
    /// PHC form). Every line is checked first; what is wrong is listed with its line, and
    /// nothing is done. Passwords are hashed on all cores, some ten milliseconds each.
    #[command(after_help = HELP)]
    Import(ImportArgs),
    /// Set a user's password
    ///
    /// Remotes that have signed in already keep their own credentials: to shut one out,
    /// see `tidewater remote revoke`.
    #[command(after_help = HELP)]
    SetPassword(WithPassword),
    /// Keep a user out, with all remotes
    #[command(after_help = HELP)]
    Disable(UserNameArgs),
    /// Let a disabled user in again
    #[command(after_help = HELP)]
    Enable(UserNameArgs),
    /// Remove a user, with all remotes and subscriptions
    ///
    /// Rows stay where they are. What the user's remotes have not uploaded yet stays on
    /// them, and goes up if a user of that name is added again and signs in there. To keep
    /// somebody out for a while, use `disable`.
    #[command(after_help = HELP)]
    Remove(UserNameArgs),
    /// List the users
    #[command(after_help = HELP)]
    List(UserListArgs),
}

#[derive(Debug, Args)]
struct UserAddArgs {
    #[command(flatten)]
    user: WithPassword,
    /// Without a password: the user signs in by what [sign_in] of the configuration trusts
    #[arg(long, conflicts_with = "password_stdin")]
    no_password: bool,
}

#[derive(Debug, Args)]
struct WithPassword {
    /// The user's name
    name: String,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    password: PasswordArgs,
}

#[derive(Debug, Args)]
struct UserNameArgs {
    /// The user's name
    name: String,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Args)]
struct UserListArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print {"users":[{"name","disabled","created_ms","proven"}]}: proven is null, or who has
    /// proven the user last, when, and what is kept: {"by","at_ms","claims":{}}
    #[arg(long)]
    json: bool,
}

impl UserArgs {
    pub(crate) fn wants_json(&self) -> bool {
        match &self.action {
            UserAction::List(args) => args.json,
            UserAction::Import(args) => args.json,
            _ => false,
        }
    }
}

pub(crate) fn run(args: &UserArgs) -> Result<CommandOutcome, Failure> {
    match &args.action {
        UserAction::Add(args) => add(args),
        UserAction::Import(args) => user_import::run(args),
        UserAction::SetPassword(args) => set_password(args),
        UserAction::Disable(args) => set_disabled(args, true),
        UserAction::Enable(args) => set_disabled(args, false),
        UserAction::Remove(args) => {
            let centre = OpenCentre::open(&args.config)?;
            found(centre.remove_user(&args.name)?, &args.name)?;
            output::note(&format!("{} removed", output::printable(&args.name)));
            Ok(CommandOutcome::Complete)
        }
        UserAction::List(args) => list(args),
    }
}

fn add(args: &UserAddArgs) -> Result<CommandOutcome, Failure> {
    let UserAddArgs {
        user: args,
        no_password,
    } = args;
    check_name(&args.name)?;
    let centre = OpenCentre::open(&args.config)?;
    let taken = || {
        Failure::usage(
            format!("there is a user {:?} already", args.name),
            format!(
                "to change the password: tidewater user set-password {}",
                args.name
            ),
        )
    };
    // Before anybody thinks of a password.
    if is_there(&centre, &args.name)? {
        return Err(taken());
    }
    let prompt = format!("Password for {}: ", output::printable(&args.name));
    let password = match no_password {
        true => None,
        false => Some(args.password.obtain_new(&prompt)?),
    };
    if !centre.add_user(&args.name, password.as_deref())? {
        return Err(taken());
    }
    output::note(&format!("{} added", output::printable(&args.name)));
    Ok(CommandOutcome::Complete)
}

fn set_password(args: &WithPassword) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(&args.config)?;
    found(is_there(&centre, &args.name)?, &args.name)?;
    let prompt = format!("New password for {}: ", output::printable(&args.name));
    let password = args.password.obtain_new(&prompt)?;
    found(centre.set_password(&args.name, &password)?, &args.name)?;
    output::note(&format!(
        "password of {} set",
        output::printable(&args.name)
    ));
    Ok(CommandOutcome::Complete)
}

fn is_there(centre: &OpenCentre, name: &str) -> Result<bool, Failure> {
    Ok(centre.users()?.iter().any(|user| user.name == name))
}

fn set_disabled(args: &UserNameArgs, disabled: bool) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(&args.config)?;
    found(centre.set_disabled(&args.name, disabled)?, &args.name)?;
    let state = if disabled { "disabled" } else { "enabled" };
    output::note(&format!("{} {state}", output::printable(&args.name)));
    Ok(CommandOutcome::Complete)
}

fn list(args: &UserListArgs) -> Result<CommandOutcome, Failure> {
    let users = OpenCentre::open(&args.config)?.users()?;
    if args.json {
        let users = users.iter().map(|user| ListedUser {
            name: &user.name,
            disabled: user.disabled,
            created_ms: user.created_ms,
            proven: (user.proven.at_ms != 0).then(|| ProvenUser {
                by: &user.proven.by,
                at_ms: user.proven.at_ms,
                claims: user.proven.claims.iter().collect(),
            }),
        });
        output::json(&ListedUsers {
            users: users.collect(),
        })?;
    } else if users.is_empty() {
        output::note("no users yet; add one: tidewater user add NAME");
    } else {
        output::text(&rendered(&users))?;
    }
    Ok(CommandOutcome::Complete)
}

/// Who has proven users is told if there are any.
fn rendered(users: &[UserRecord]) -> String {
    let state = |user: &UserRecord| if user.disabled { "disabled" } else { "" };
    if users.iter().all(|user| user.proven.at_ms == 0) {
        let mut table = TextTable::new(&["user", "added", "state"]);
        for user in users {
            let added = output::moment(user.created_ms);
            table.row([user.name.clone(), added, state(user).into()]);
        }
        return table.render(0);
    }
    let mut table = TextTable::new(&["user", "added", "state", "proven by", "at"]);
    for user in users {
        table.row([
            user.name.clone(),
            output::moment(user.created_ms),
            state(user).into(),
            user.proven.by.clone(),
            match user.proven.at_ms {
                0 => String::new(),
                at_ms => output::moment(at_ms),
            },
        ]);
    }
    table.render(0)
}

#[derive(Serialize)]
struct ListedUsers<'a> {
    users: Vec<ListedUser<'a>>,
}

#[derive(Serialize)]
struct ListedUser<'a> {
    name: &'a str,
    disabled: bool,
    created_ms: i64,
    proven: Option<ProvenUser<'a>>,
}

#[derive(Serialize)]
struct ProvenUser<'a> {
    by: &'a str,
    at_ms: i64,
    claims: BTreeMap<&'a str, &'a str>,
}

fn found(exists: bool, name: &str) -> Result<(), Failure> {
    if exists {
        Ok(())
    } else {
        Err(Failure::usage(
            format!("there is no user {name:?}"),
            "see: tidewater user list",
        ))
    }
}

//! `weir user`: users with secrets for CHAP. A secret is read from a prompt or from standard input, never from the command
//! line, which other users of the machine can see.

use crate::args::CommandLine;
use crate::call::{Call, Input};
use crate::failure::Failure;
use clap::{Parser, Subcommand};
use std::io::IsTerminal;
use weir_daemon::users::{ChapSecret, ChapUsers, UserError};
use weir_linux::Production;

/// Users with secrets for CHAP (iSCSI).
///
/// weir:iscsi=chap=USER,mutual=USER names them. Secrets are encrypted at rest.
#[derive(Debug, Parser)]
#[command(name = "weir user", override_usage = "weir user add|remove NAME\n       weir user list")]
pub struct UserArgs {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// Add a CHAP user, or set another secret: it is read from a prompt, or from standard input
    #[command(override_usage = "weir user add NAME")]
    Add(NameArgs),
    /// Remove a CHAP user
    #[command(override_usage = "weir user remove NAME")]
    Remove(NameArgs),
    /// List the CHAP users
    #[command(override_usage = "weir user list")]
    List,
}

/// A user.
#[derive(Debug, Parser)]
struct NameArgs {
    /// Name of the user
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

fn failed(error: UserError) -> Failure {
    Failure::failed(format!("weir user: {error}"))
}

/// The list of this user.
///
/// # Errors
/// If the user has no home directory.
pub fn chap_users() -> Result<ChapUsers, Failure> {
    let folder = crate::directories::state();
    let none = || Failure::failed("weir user: no state directory: set XDG_STATE_HOME or HOME");
    folder.map(ChapUsers::new).ok_or_else(none)
}

/// Names of the users of this user's list, for checks of what properties name.
///
/// # Errors
/// If the list cannot be read.
pub fn chap_names() -> Result<Vec<String>, String> {
    chap_users().map_err(|failure| failure.line)?.names().map_err(|error| error.to_string())
}

/// Runs the command.
pub fn run(args: &UserArgs) -> Result<u8, Failure> {
    let users = chap_users()?;
    let one = |args: &NameArgs| match args.names.as_slice() {
        [name] => Ok(name.clone()),
        _ => Err(UserArgs::misused("name one user; the secret is read from a prompt or standard input")),
    };
    match &args.command {
        UserCommand::Add(args) => {
            add(&users, &one(args)?)?;
            tell_servers()?;
        }
        UserCommand::Remove(args) => {
            users.remove(&one(args)?).map_err(failed)?;
            tell_servers()?;
        }
        UserCommand::List => users.names().map_err(failed)?.iter().for_each(|name| println!("{name}")),
    }
    Ok(0)
}

/// Makes the processes of this user that serve pools read the users again.
fn tell_servers() -> Result<(), Failure> {
    let call = Call::own("daemon", vec!["renew".into()]);
    for server in crate::admin::servers() {
        let pid = server.pid;
        let why = match crate::admin::tell(&call, &server) {
            Ok(0) => continue,
            Ok(_) => "it is another version of this program".to_owned(),
            Err(failure) => failure.line,
        };
        eprintln!(
            "weir user: process {pid} has not learnt of the change: {why}; 'weir daemon reload' or a restart helps"
        );
    }
    Ok(())
}

fn add(users: &ChapUsers, name: &str) -> Result<(), Failure> {
    let entered = Input::Line(format!("CHAP secret of '{name}': ")).read();
    if entered.is_empty() {
        return Err(Failure::failed("weir user: no secret was given"));
    }
    let secret = ChapSecret::new(entered).map_err(failed)?;
    if std::io::stdin().is_terminal() {
        let again = Input::Line(format!("CHAP secret of '{name}' again: ")).read();
        if ChapSecret::new(again).map_err(failed)?.bytes() != secret.bytes() {
            return Err(Failure::failed("weir user: the secrets do not match"));
        }
    }
    let machine = Production::from_env().build()?;
    let is_new = users.set(&machine.entropy, name, &secret).map_err(failed)?;
    println!("{} '{name}'", if is_new { "added user" } else { "set the secret of user" });
    Ok(())
}

//! `weir smb`: the users of SMB, and the connections of its servers.

pub mod places;
pub mod serving;

use crate::call::Input;
use crate::failure::Failure;
use crate::table::{Align, Table};
use clap::{Parser, Subcommand};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use weir_daemon::smb::{Connection, SmbError, UNPRIVILEGED_PORT, is_running, status_of, users};
use weir_linux::Production;

/// Show the connections of SMB, and change its users.
#[derive(Debug, Parser)]
#[command(name = "weir smb", override_usage = "weir smb COMMAND [OPTION]… [ARGUMENT]…")]
pub struct SmbCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Status(StatusArgs),
    User(UserArgs),
}

/// Show the connections with their dialect, signing and encryption.
#[derive(Debug, Parser)]
#[command(name = "weir smb status", override_usage = "weir smb status [-H]")]
struct StatusArgs {
    /// Tabs between the columns, and no header
    #[arg(short = 'H')]
    scripted: bool,
}

/// Change and list the users of SMB.
#[derive(Debug, Parser)]
#[command(name = "weir smb user", override_usage = "weir smb user add|list|remove [OPTION]… [NAME]")]
struct UserArgs {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// Add a user, or change the password. It is asked for, or read from standard input.
    #[command(override_usage = "weir smb user add NAME")]
    Add(NameArgs),
    /// List the users.
    #[command(override_usage = "weir smb user list [-H]")]
    List(StatusArgs),
    /// Remove a user.
    #[command(override_usage = "weir smb user remove NAME")]
    Remove(NameArgs),
}

#[derive(Debug, Parser)]
struct NameArgs {
    /// User
    #[arg(value_name = "NAME")]
    name: String,
}

impl From<SmbError> for Failure {
    fn from(error: SmbError) -> Self {
        Failure::failed(format!("weir smb: {error}"))
    }
}

/// Runs the command.
pub fn run(args: &SmbCommand) -> Result<u8, Failure> {
    match &args.command {
        Command::Status(args) => status(args.scripted),
        Command::User(args) => match &args.command {
            UserCommand::Add(args) => add(&args.name),
            UserCommand::List(args) => list(args.scripted),
            UserCommand::Remove(args) => remove(&args.name),
        },
    }
}

fn columns(names: &[&str]) -> Vec<(String, Align)> {
    names.iter().map(|name| ((*name).to_owned(), Align::Left)).collect()
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

fn status(scripted: bool) -> Result<u8, Failure> {
    let servers: Vec<_> = places::all()?.into_iter().filter(|(_, directories)| is_running(directories)).collect();
    if servers.is_empty() {
        return Err(Failure::failed("weir smb: no server of this user runs: weir serve --smb POOL"));
    }
    let machine = Production::from_env().build()?;
    let names = ["PORT", "USER", "ADDRESS", "DIALECT", "SIGNING", "ENCRYPTION", "SHARES"];
    let mut table = Table::new(columns(&names), scripted);
    for (port, directories) in servers {
        for connection in machine.block_on(status_of(&machine, &directories))?.connections {
            table.row(row(port, &connection));
        }
    }
    print!("{}", table.text());
    Ok(0)
}

fn row(port: u16, connection: &Connection) -> Vec<String> {
    let Connection { user, address, dialect, signing, encryption, shares, .. } = connection;
    let texts = [user, address, dialect, signing, encryption, &shares.join(",")].map(|text| or_dash(text));
    std::iter::once(port.to_string()).chain(texts).collect()
}

fn add(name: &str) -> Result<u8, Failure> {
    let first = password(&format!("New SMB password for {name}: "))?;
    // A second line confirms it, if there is one.
    let again = Input::Line(format!("Retype new SMB password for {name}: ")).read();
    if !again.is_empty() && again != first.as_bytes() {
        return Err(Failure::failed("weir smb: the passwords do not match"));
    }
    let machine = Production::from_env().build()?;
    let directories = places::of_port(UNPRIVILEGED_PORT)?;
    let user = machine.block_on(users::add(&machine.clock, &directories, name, &first))?;
    println!("{}: user {}, group {}", user.name, user.uid, user.gid);
    Ok(0)
}

fn password(prompt: &str) -> Result<String, Failure> {
    let line = Input::Line(prompt.to_owned()).read();
    if line.is_empty() {
        return Err(Failure::failed("weir smb: no password was given"));
    }
    String::from_utf8(line).map_err(|_| Failure::failed("weir smb: a password must be UTF-8"))
}

fn list(scripted: bool) -> Result<u8, Failure> {
    let mut table = Table::new(columns(&["NAME", "USER", "GROUP"]), scripted);
    for user in users::list(&places::of_port(UNPRIVILEGED_PORT)?)? {
        table.row(vec![user.name, user.uid.to_string(), user.gid.to_string()]);
    }
    print!("{}", table.text());
    Ok(0)
}

fn remove(name: &str) -> Result<u8, Failure> {
    let machine = Production::from_env().build()?;
    machine.block_on(users::remove(&machine.clock, &places::of_port(UNPRIVILEGED_PORT)?, name))?;
    // smbd looks at its users when they log on, and not again.
    for (_, directories) in places::all()?.into_iter().filter(|(_, directories)| is_running(directories)) {
        let status = machine.block_on(status_of(&machine, &directories))?;
        let of_user = status.connections.into_iter().filter(|connection| connection.user.eq_ignore_ascii_case(name));
        for pid in of_user.filter_map(|connection| Pid::from_raw(i32::try_from(connection.pid).ok()?)) {
            match kill_process(pid, Signal::TERM) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(why) => {
                    let what = format!("weir smb: '{name}' is removed, but its connection (process {pid}) did not end");
                    return Err(Failure::failed(format!("{what}: {why}")));
                }
            }
        }
    }
    Ok(0)
}

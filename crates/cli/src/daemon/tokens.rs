//! `weir daemon token`: tokens of the page and the API, and their roles.

use super::keeper::Daemon;
use super::status::{utc, with_numbers};
use crate::call::{Call, outln};
use crate::command_target::now;
use crate::failure::Failure;
use crate::json;
use crate::options::JsonOptions;
use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use serde_json::{Map, Value};
use std::sync::Arc;
use weir_web::{NamedToken, Role};

/// Make, list and revoke tokens for the page and the API.
///
/// The daemon's own token, in web.token, has the role administer.
#[derive(Debug, Parser)]
#[command(
    name = "weir daemon token",
    override_usage = "weir daemon token add NAME [--role ROLE]\n       weir daemon token list [-j [--json-int]]\n       weir daemon token revoke NAME"
)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token and print it; only its hash is kept
    #[command(override_usage = "weir daemon token add NAME [--role ROLE]")]
    Add {
        /// Name of the token: letters, digits, '-', '_' and '.'
        name: String,
        /// view: read; operate: also snapshots, scrubs, clear, alerts; administer: everything
        #[arg(long, value_name = "ROLE", default_value = "view", value_parser = PossibleValuesParser::new(["view", "operate", "administer"]))]
        role: String,
    },
    /// List the tokens by name, with their roles
    #[command(override_usage = "weir daemon token list [-j [--json-int]]")]
    List {
        #[command(flatten)]
        json: JsonOptions,
    },
    /// End a token: it is refused from now on
    #[command(override_usage = "weir daemon token revoke NAME")]
    Revoke {
        /// Name of the token
        name: String,
    },
}

/// Runs the command in the daemon.
///
/// # Errors
/// If a name is taken or unknown, or the file of tokens cannot be written.
pub fn run(call: &Call, daemon: &Arc<Daemon>, args: &TokenArgs) -> Result<u8, Failure> {
    let access = daemon.access().ok_or_else(|| Failure::failed("the daemon is starting: try again"))?;
    match &args.command {
        TokenCommand::Add { name, role } => {
            let role = Role::named(role).ok_or_else(|| Failure::usage(format!("'{role}' is no role")))?;
            let token = access.add(&daemon.machine, name, role, now().sec).map_err(Failure::failed)?;
            outln!(call, "{}", token.secret());
        }
        TokenCommand::Revoke { name } => access.revoke(name).map_err(Failure::failed)?,
        TokenCommand::List { json } if json.json => {
            let numbers = json.numbers::<TokenArgs>()?;
            let mut answer = json::frame("weir daemon token list");
            let tokens = access.all().into_iter().map(|token| (token.name.clone(), object(token)));
            let tokens = Value::Object(tokens.collect());
            answer.extend(with_numbers(Map::from_iter([("tokens".to_owned(), tokens)]), numbers));
            json::print(call, answer);
        }
        TokenCommand::List { .. } => {
            for NamedToken { name, role, made, .. } in access.all() {
                outln!(call, "{name}: {}, made {}", role.name(), utc(made));
            }
        }
    }
    Ok(0)
}

/// A token without its hash.
fn object(token: NamedToken) -> Value {
    let fields = [("role", token.role.name().to_owned()), ("made", utc(token.made))];
    Value::Object(fields.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect())
}

//! `weir top`: who uses the pools that processes have open, and for what.

use super::Watched;
use super::top_text::{Order, screen};
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::zpool::repeat::Repetition;
use clap::Parser;
use rustix::termios::{isatty, tcgetwinsize};
use std::time::Duration;

/// Lines of a screen if the terminal does not tell.
const LINES: usize = 24;

/// Show clients, datasets and operations of pools, live.
///
/// The first screen covers the time since the process opened the pool, each further one the time since the last. In a terminal, the
/// screen is replaced every two seconds until Ctrl-C; elsewhere one report is printed, or as many as COUNT says.
#[derive(Debug, Parser)]
#[command(name = "weir top", override_usage = "weir top [-bp] [-s ORDER] [-d DIR]… [POOL…] [INTERVAL [COUNT]]")]
pub struct TopArgs {
    /// Print reports one below the other, with all rows, also in a terminal
    #[arg(short)]
    batch: bool,
    /// Print exact numbers; times in nanoseconds
    #[arg(short)]
    parsable: bool,
    /// Order of the rows: ops, read, write, device or name
    #[arg(short, value_name = "ORDER", default_value = "ops")]
    sort: String,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools; then seconds between two screens, and number of screens
    #[arg(value_name = "POOL INTERVAL COUNT")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &TopArgs) -> Result<u8, Failure> {
    let mut names = args.words.clone();
    let mut repetition = Repetition::take::<TopArgs>(None, &mut names)?;
    let order = Order::named(&args.sort);
    let order = order.ok_or_else(|| TopArgs::misused("-s takes ops, read, write, device or name"))?;
    let in_place = !args.batch && isatty(std::io::stdout());
    if in_place && repetition.interval.is_none() {
        repetition.interval = Some(Duration::from_secs(2));
    }
    let mut watched = Watched::find(call, &args.places, &names)?;
    repetition.run(call, |is_first| {
        let mut text = String::new();
        for interval in watched.next(call)? {
            text.push_str(&screen(&interval, order, args.parsable));
        }
        if in_place {
            let lines = tcgetwinsize(std::io::stdout()).map_or(LINES, |size| usize::from(size.ws_row)).max(5);
            let shown: Vec<&str> = text.lines().take(lines - 1).collect();
            // Home, text, and the rest of the screen cleared.
            call.print(format_args!("\x1b[H\x1b[2J{}\n", shown.join("\n")));
        } else {
            call.print(format_args!("{}{text}", if is_first { "" } else { "\n" }));
        }
        Ok(0)
    })
}

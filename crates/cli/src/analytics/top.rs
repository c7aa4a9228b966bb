//! `weir top`: who uses the pools that processes have open, and for what.

use super::Watched;
use super::top_text::{Order, files_screen, screen};
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::zpool::repeat::Repetition;
use clap::Parser;
use rustix::termios::{isatty, tcgetwinsize};
use std::time::Duration;
use weir_analytics::MAX_PATHS;

/// Lines of a screen if the terminal does not tell.
const LINES: usize = 24;

/// Show clients, datasets and operations of pools live, or the busiest files.
///
/// The first screen covers the time since the process opened the pool, each further one the time since the last. In a terminal, the
/// screen is replaced every two seconds until Ctrl-C; elsewhere one report is printed, or as many as COUNT says.
#[derive(Debug, Parser)]
#[command(name = "weir top", override_usage = "weir top [-bfp] [-s ORDER] [-d DIR]… [POOL…] [INTERVAL [COUNT]]")]
pub struct TopArgs {
    /// Print reports one below the other, with all rows, also in a terminal
    #[arg(short)]
    batch: bool,
    /// Show files, each with one client, instead of clients and operations. ERROR is how many bytes it may have had beside those shown
    #[arg(short)]
    files: bool,
    /// Print exact numbers; times in nanoseconds
    #[arg(short)]
    parsable: bool,
    /// Order of the rows: ops, bytes (read and written), read, write, device (not of files) or name [default: ops; of files bytes]
    #[arg(short, value_name = "ORDER")]
    sort: Option<String>,
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
    let default = if args.files { "bytes" } else { "ops" };
    let order = Order::named(args.sort.as_deref().unwrap_or(default));
    let order = order.ok_or_else(|| TopArgs::misused("-s takes ops, bytes, read, write, device or name"))?;
    if args.files && order == Order::Device {
        return Err(TopArgs::misused("-f: bytes written to devices are not counted by file; -s device needs clients"));
    }
    let in_place = !args.batch && isatty(std::io::stdout());
    if in_place && repetition.interval.is_none() {
        repetition.interval = Some(Duration::from_secs(2));
    }
    let mut watched = Watched::find(call, &args.places, &names)?;
    repetition.run(call, |is_first| {
        let mut text = String::new();
        for (place, mut interval) in watched.next(call)?.into_iter().enumerate() {
            if args.files {
                order.sort_files(&mut interval.files.rows);
                interval.files.truncate(MAX_PATHS);
                watched.name_files(call, place, &mut interval.files)?;
                text.push_str(&files_screen(&interval, args.parsable));
            } else {
                text.push_str(&screen(&interval, order, args.parsable));
            }
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

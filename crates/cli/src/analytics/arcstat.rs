//! `weir arcstat`: hits, misses and sizes of the ARCs of pools that processes have open.
//!
//! Source: OpenZFS `cmd/arcstat.in`, whose field names and options it takes where they mean the same.

use super::arcstat_fields::{FIELDS, Field, USUAL};
use super::{Watched, has_daemon_without_pools};
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::zpool::repeat::Repetition;
use clap::Parser;
use weir_analytics::Interval;

/// Lines between two headers.
const HEADER_LINES: u64 = 20;

/// Show hits, misses and sizes of the ARC.
///
/// Each pool that a process has open has an ARC of its own. The first line covers the time since the process opened the pool, each
/// further one the time since the last.
#[derive(Debug, Parser)]
#[command(
    name = "arcstat",
    override_usage = "arcstat [-Hpv] [-f FIELD,…] [-s TEXT] [-d DIR]… [POOL…] [INTERVAL [COUNT]]"
)]
pub struct ArcstatArgs {
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers
    #[arg(short)]
    parsable: bool,
    /// Show all fields, with their descriptions
    #[arg(short)]
    verbose: bool,
    /// Fields to show, in this order
    #[arg(short, value_name = "FIELD,…")]
    fields: Option<String>,
    /// Text between two columns [default: two spaces]
    #[arg(short, value_name = "TEXT")]
    separator: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools; then seconds between two lines, and number of lines
    #[arg(value_name = "POOL INTERVAL COUNT")]
    words: Vec<String>,
}

impl ArcstatArgs {
    /// The fields that are shown; by default also the pool if there are several.
    fn chosen(&self, pools: usize) -> Result<Vec<Field>, Failure> {
        let Some(list) = &self.fields else {
            let pool = Field::named("pool").filter(|_| pools > 1);
            return Ok(pool.into_iter().chain(USUAL.iter().filter_map(|name| Field::named(name))).collect());
        };
        let unknown = |name: &str| ArcstatArgs::misused(&format!("there is no field '{name}': arcstat -v lists them"));
        list.split(',').map(|name| Field::named(name.trim()).ok_or_else(|| unknown(name))).collect()
    }

    fn separator(&self) -> &str {
        self.separator.as_deref().unwrap_or(if self.scripted { "\t" } else { "  " })
    }

    fn header(&self, fields: &[Field]) -> String {
        let names: Vec<String> = fields.iter().map(|field| format!("{:>1$}", field.name, field.width)).collect();
        names.join(self.separator())
    }

    fn line(&self, fields: &[Field], interval: &Interval) -> String {
        let width = |field: &Field| if self.scripted { 0 } else { field.width };
        let text = |field: &Field| format!("{:>1$}", field.text(interval, self.parsable), width(field));
        fields.iter().map(text).collect::<Vec<_>>().join(self.separator())
    }
}

/// Runs the command.
pub fn run(call: &Call, args: &ArcstatArgs) -> Result<u8, Failure> {
    if args.verbose {
        let width = FIELDS.iter().map(|field| field.name.len()).max().unwrap_or(0);
        FIELDS.iter().for_each(|field| outln!(call, "{:>width$}  {}", field.name, field.help));
        return Ok(0);
    }
    let mut names = args.words.clone();
    let repetition = Repetition::take::<ArcstatArgs>(None, &mut names)?;
    if names.is_empty() && has_daemon_without_pools(call, &args.places)? {
        outln!(call, "{}", args.header(&args.chosen(0)?));
        return Ok(0);
    }
    let mut watched = Watched::find(call, &args.places, &names)?;
    let fields = args.chosen(watched.len())?;
    let mut lines = 0;
    repetition.run(call, |_| {
        if !args.scripted && lines % HEADER_LINES == 0 {
            outln!(call, "{}", args.header(&fields));
        }
        for interval in watched.next(call)? {
            outln!(call, "{}", args.line(&fields, &interval));
        }
        lines += 1;
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> ArcstatArgs {
        let words: Vec<_> = line.split_whitespace().map(Into::into).collect();
        ArcstatArgs::parse_line(&words).unwrap()
    }

    #[test]
    fn fields_are_those_named_or_the_usual_ones() {
        let names = |line: &str, pools| {
            let fields = parse(line).chosen(pools).map_err(|failure| failure.line)?;
            Ok::<_, String>(fields.iter().map(|field| field.name).collect::<Vec<_>>())
        };
        assert_eq!(names("-f size,hit% tank 1 2", 1).unwrap(), ["size", "hit%"]);
        assert_eq!(names("", 1).unwrap(), USUAL);
        assert_eq!(names("", 2).unwrap()[..2], ["pool", "time"]);
        assert!(names("-f l3hits", 1).unwrap_err().contains("there is no field 'l3hits'"));
        assert!(parse("-f time,read").header(&parse("-f time,read").chosen(1).unwrap()).starts_with("    time   read"));
    }
}

//! `zfs send`: the stream of a snapshot, on standard output.

use super::target::{pool_of, words};
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::Places;
use crate::pools::{PoolHandle, keys_of, look, search};
use clap::Parser;
use futures_util::future::BoxFuture;
use std::io::IsTerminal;
use std::sync::Arc;
use weir_dsl::Dsl;
use weir_engine::Engine;
use weir_engine::sends::pool_features;
use weir_format::Endian;
use weir_format::stream::{Begin, Record};
use weir_machine::Request;
use weir_pool::{OpenOptions, Pool, PoolError};
use weir_send::{Output, SendError, SendFlags, SendPlan};

/// Write the stream of a snapshot to standard output.
#[derive(Debug, Parser)]
#[command(
    name = "zfs send",
    disable_help_flag = true,
    override_usage = "zfs send [-Lec] [-i SNAPSHOT|BOOKMARK | -I SNAPSHOT] [--dir DIR]… SNAPSHOT"
)]
pub struct SendArgs {
    /// Send the changes since this snapshot or bookmark
    #[arg(short = 'i', value_name = "SNAPSHOT|BOOKMARK")]
    from: Option<String>,
    /// Send the changes since this snapshot, with the snapshots between
    #[arg(short = 'I', value_name = "SNAPSHOT", conflicts_with = "from")]
    all_from: Option<String>,
    /// Send blocks of more than 128 KiB whole
    #[arg(short = 'L', long = "large-block")]
    large_blocks: bool,
    /// Send embedded blocks as they are
    #[arg(short = 'e', long = "embed")]
    embedded: bool,
    /// Send compressed blocks as they are
    #[arg(short = 'c', long = "compressed")]
    compressed: bool,
    /// Refused: not supported yet
    #[arg(short = 'R', long = "replicate")]
    replicate: bool,
    /// Refused: not supported yet
    #[arg(short = 'p', long = "props")]
    props: bool,
    /// Refused: not supported yet
    #[arg(short = 'w', long = "raw")]
    raw: bool,
    /// Refused: not supported yet
    #[arg(short = 'n', long = "dryrun")]
    dry_run: bool,
    /// Refused: not supported yet
    #[arg(short = 'v', long = "verbose")]
    verbose: bool,
    /// Refused: not supported yet
    #[arg(short = 'P', long = "parsable")]
    parsable: bool,
    /// Refused: not supported yet
    #[arg(short = 'h', long = "holds")]
    holds: bool,
    /// Refused: not supported yet
    #[arg(short = 'b', long = "backup")]
    backup: bool,
    /// Refused: not supported yet
    #[arg(short = 's', long = "skip-missing")]
    skip_missing: bool,
    /// Refused: not supported yet
    #[arg(short = 'S', long = "saved")]
    saved: bool,
    /// Refused: not supported yet
    #[arg(short = 't', value_name = "TOKEN")]
    token: Option<String>,
    /// Refused: not supported yet
    #[arg(short = 'd', long = "redact", value_name = "BOOKMARK")]
    redact: Option<String>,
    /// Refused, as by OpenZFS since 2.0
    #[arg(short = 'D', long = "dedup")]
    dedup: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    places: Places,
    /// Snapshot
    #[arg(value_name = "SNAPSHOT")]
    words: Vec<String>,
}

impl SendArgs {
    /// The first option that is not supported.
    fn refused(&self) -> Option<&'static str> {
        let given = [
            (self.replicate, "-R"),
            (self.props, "-p"),
            (self.raw, "-w"),
            (self.dry_run, "-n"),
            (self.verbose, "-v"),
            (self.parsable, "-P"),
            (self.holds, "-h"),
            (self.backup, "-b"),
            (self.skip_missing, "-s"),
            (self.saved, "-S"),
            (self.token.is_some(), "-t"),
            (self.redact.is_some(), "--redact"),
            (self.dedup, "-D"),
        ];
        given.into_iter().find(|(is_given, _)| *is_given).map(|(_, option)| option)
    }

    fn flags(&self) -> SendFlags {
        SendFlags { large_blocks: self.large_blocks, embedded: self.embedded, compressed: self.compressed }
    }
}

/// The standard output of a command.
struct CallOutput<'a>(&'a Call);

impl Output for CallOutput<'_> {
    fn put(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), SendError>> {
        Box::pin(async move {
            self.0.write(bytes);
            self.0.wait_for_output().await;
            if self.0.is_gone() { Err(SendError::ReaderGone) } else { Ok(()) }
        })
    }
}

/// Runs the command.
pub fn run(call: &Call, args: &SendArgs) -> Result<u8, Failure> {
    let to = words::<SendArgs>(&args.words, 1..=1, "missing snapshot argument")?.remove(0);
    if let Some(option) = args.refused() {
        return Err(Failure::failed(format!("cannot send '{to}': weir does not support zfs send {option} yet")));
    }
    if !to.contains('@') {
        return Err(SendArgs::misused("argument must be a snapshot"));
    }
    if call.process().is_none() && std::io::stdout().is_terminal() {
        let why = "Error: Stream can not be written to a terminal.\nYou must redirect standard output.";
        return Err(Failure::failed(why));
    }
    let from = args.from.as_ref().or(args.all_from.as_ref()).map(|from| whole_name(from, &to));
    let pool = pool_of(&to).to_owned();
    let mut options = OpenOptions::new(search(call, &args.places.dirs)?, &pool);
    options.keys = keys_of(call, &options.search, &args.places.keys)?;
    let seen = look(call, &options)?;
    call.begin();
    let machine = call.machine()?;
    let rq = Request::internal("send");
    let source = match (&seen, call.served_pool(&pool)) {
        (PoolHandle::Open(_), Some(served_pool)) => Source::Served(served_pool.engine.clone()),
        _ => Source::AtRest(&seen),
    };
    let done = machine.block_on(send(call, args, &rq, &source, from.as_deref(), &to));
    done.map(|()| 0).map_err(|error| failure(&to, error))
}

fn failure(to: &str, error: SendError) -> Failure {
    match error {
        SendError::Unsupported(what) => Failure::failed(format!("cannot send '{to}': weir does not send {what} yet")),
        other => Failure::failed(format!("cannot send '{to}': {other}")),
    }
}

/// The full name of the origin, which may leave out the dataset of the snapshot that is sent.
fn whole_name(from: &str, to: &str) -> String {
    let of = to.split('@').next().unwrap_or_default();
    match from {
        short if short.starts_with(['@', '#']) => format!("{of}{short}"),
        short if !short.contains(['@', '#', '/']) => format!("{of}@{short}"),
        whole => whole.to_owned(),
    }
}

/// The pool of the snapshots.
enum Source<'a> {
    /// Open in this process.
    Served(Arc<Engine>),
    /// Read by this command.
    AtRest(&'a Pool),
}

fn pool_error(error: PoolError) -> SendError {
    match error {
        PoolError::Object(error) => SendError::Object(error),
        other => SendError::Refused(other.to_string()),
    }
}

impl Source<'_> {
    /// Makes the stream of one snapshot.
    async fn one(
        &self,
        rq: &Request,
        (from, to): (Option<&str>, &str),
        flags: SendFlags,
        output: &mut CallOutput<'_>,
    ) -> Result<(), SendError> {
        let unlocked = |is_locked: bool| match is_locked {
            true => Err(SendError::Refused("dataset key must be loaded".into())),
            false => Ok(()),
        };
        match self {
            Source::Served(engine) => {
                let (sent, dsl) = engine.sends().hold(rq, to).await.map_err(pool_error)?;
                unlocked(sent.set.is_locked())?;
                let names = (from, sent.dataset.clone());
                let plan = SendPlan::new(rq, &dsl, names, &sent.set, (flags, sent.features)).await?;
                // The hold keeps the snapshot; other blocks may be reused.
                drop(dsl);
                weir_send::make(rq, &sent.set, &plan, output).await.map(drop)
            }
            Source::AtRest(pool) => {
                let dataset = pool.dsl.find(rq, to).await?;
                let key = pool.loaded.get(&dataset.dir).cloned();
                let set = pool.dsl.open_set(rq, &dataset, key).await?;
                unlocked(set.is_locked())?;
                let features = pool_features(&pool.features);
                let plan = SendPlan::new(rq, &pool.dsl, (from, dataset), &set, (flags, features)).await?;
                weir_send::make(rq, &set, &plan, output).await.map(drop)
            }
        }
    }

    /// The snapshots of the dataset of `to` after `from` up to `to`, from the oldest to the newest.
    async fn between(&self, rq: &Request, from: &str, to: &str) -> Result<Vec<String>, SendError> {
        match self {
            Source::Served(engine) => {
                let dsl = engine.synced().dsl(rq).await.map_err(pool_error)?;
                between(rq, &dsl, from, to).await
            }
            Source::AtRest(pool) => between(rq, &pool.dsl, from, to).await,
        }
    }
}

async fn between(rq: &Request, dsl: &Dsl, from: &str, to: &str) -> Result<Vec<String>, SendError> {
    let last = dsl.find(rq, to).await?;
    let first = dsl.find(rq, from).await?;
    let of = to.split('@').next().unwrap_or_default();
    let dir = dsl.dir_named(of).ok_or_else(|| SendError::Refused("dataset does not exist".into()))?;
    let list = dsl.snapshots(rq, dir).await?;
    let range = first.phys.creation_txg..last.phys.creation_txg;
    let wanted =
        list.snapshots.iter().filter(|s| s.phys.creation_txg > range.start && s.phys.creation_txg <= range.end);
    Ok(wanted.map(|snapshot| snapshot.name.clone()).collect())
}

async fn send(
    call: &Call,
    args: &SendArgs,
    rq: &Request,
    source: &Source<'_>,
    from: Option<&str>,
    to: &str,
) -> Result<(), SendError> {
    let mut output = CallOutput(call);
    let (Some(from), true) = (from, args.all_from.is_some()) else {
        return source.one(rq, (from, to), args.flags(), &mut output).await;
    };
    let steps = source.between(rq, from, to).await?;
    if steps.is_empty() {
        return Err(SendError::Refused("not an earlier snapshot from the same fs".into()));
    }
    output.put(weir_send::encoder::package_head(compound(to), &[])).await?;
    let mut before = from.to_owned();
    for step in steps {
        source.one(rq, (Some(&before), &step), args.flags(), &mut output).await?;
        before = step;
    }
    // A package ends with a record without a checksum.
    output.put(Record::End { checksum: [0; 4], to_guid: 0 }.encode(Endian::Little, [0; 4])).await
}

/// BEGIN of a package of streams.
fn compound(to: &str) -> Begin {
    Begin {
        header_type: weir_send::plan::COMPOUND,
        features: 0,
        creation_time_s: 0,
        objset_type: 0,
        flags: 0,
        to_guid: 0,
        from_guid: 0,
        to_name: to.as_bytes().to_vec(),
        payload_len: 0,
    }
}

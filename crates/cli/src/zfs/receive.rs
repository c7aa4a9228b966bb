//! `zfs receive`: makes datasets and snapshots of a stream on standard input.

use super::target::{self, words};
use crate::call::{Call, Input as CallerInput, outln};
use crate::failure::Failure;
use crate::options::Places;
use crate::writable::{WritablePool, refused};
use clap::Parser;
use futures_util::future::BoxFuture;
use weir_admin::{Host, MountChange, MountEffect};
use weir_dsl::Dsl;
use weir_dsl::sync_tasks::receive::Receive;
use weir_format::ObjsetKind;
use weir_format::stream::{Begin, Record};
use weir_machine::Request;
use weir_pool::PoolError;
use weir_send::check::check_features;
use weir_send::plan::{COMPOUND, IGNORES_CASE, IS_CLONE, ONE_SNAPSHOT};
use weir_send::{Applier, Input, ReceiveError, StreamInput};

/// Bytes that are read from standard input at once.
const CHUNK_BYTES: u32 = 64 << 10;

/// Create datasets and snapshots from a stream on standard input.
#[derive(Debug, Parser)]
#[command(
    name = "zfs receive",
    override_usage = "zfs receive [-vnFu] [--dir DIR]… FILESYSTEM|VOLUME|SNAPSHOT\n       zfs receive [-vnFu] [-d|-e] [--dir DIR]… FILESYSTEM"
)]
pub struct ReceiveArgs {
    /// Discard changes and snapshots since the origin of the stream
    #[arg(short = 'F')]
    force: bool,
    /// Do not mount the file system
    #[arg(short = 'u')]
    no_mount: bool,
    /// Receive nothing: check the names alone
    #[arg(short = 'n')]
    dry_run: bool,
    /// Say what is received
    #[arg(short = 'v')]
    verbose: bool,
    /// Append the sender's name without its pool
    #[arg(short = 'd')]
    without_pool: bool,
    /// Append the last part of the sender's name
    #[arg(short = 'e', conflicts_with = "without_pool")]
    last_part: bool,
    /// Refused: not supported yet
    #[arg(short = 's')]
    resumable: bool,
    /// Refused: not supported yet
    #[arg(short = 'A')]
    abort: bool,
    /// Refused: not supported yet
    #[arg(short = 'M')]
    force_unmount: bool,
    /// Refused: not supported yet
    #[arg(short = 'c')]
    corrective: bool,
    /// Refused: not supported yet
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Refused: not supported yet
    #[arg(short = 'x', value_name = "PROPERTY")]
    excluded: Vec<String>,
    #[command(flatten)]
    places: Places,
    /// File system, volume or snapshot
    #[arg(value_name = "NAME")]
    words: Vec<String>,
}

impl ReceiveArgs {
    /// The first option that is not supported.
    fn refused(&self) -> Option<&'static str> {
        let given = [
            (self.resumable, "-s"),
            (self.abort, "-A"),
            (self.force_unmount, "-M"),
            (self.corrective, "-c"),
            (!self.properties.is_empty(), "-o"),
            (!self.excluded.is_empty(), "-x"),
        ];
        given.into_iter().find(|(is_given, _)| *is_given).map(|(_, option)| option)
    }

    /// The snapshot that a stream of the sender's snapshot `sent` makes.
    fn destination(&self, target: &str, sent: &str) -> Result<String, Failure> {
        let (of, _) = sent.split_once('@').unwrap_or((sent, ""));
        let tail = sent.get(of.len()..).unwrap_or_default();
        let appended = match (self.without_pool, self.last_part) {
            (true, _) => sent.find(['/', '@']).and_then(|at| sent.get(at..)).unwrap_or(tail).to_owned(),
            (_, true) => format!("/{}{tail}", of.rsplit('/').next().unwrap_or(of)),
            _ if target.contains('@') => return Ok(target.to_owned()),
            _ => tail.to_owned(),
        };
        if target.contains('@') {
            return Err(Failure::failed("cannot receive: invalid argument - snapshot not allowed with -d or -e"));
        }
        Ok(format!("{target}{appended}"))
    }
}

/// The standard input of a command.
struct CallInput<'a>(&'a Call);

impl Input for CallInput<'_> {
    fn get(&mut self, _: usize) -> BoxFuture<'_, Result<Vec<u8>, ReceiveError>> {
        // No transaction is held here, so that waiting for the sender keeps nothing back.
        Box::pin(async move { Ok(self.0.ask(CallerInput::Bytes(CHUNK_BYTES)).unwrap_or_default()) })
    }
}

/// Runs the command.
pub fn run(call: &Call, args: &ReceiveArgs) -> Result<u8, Failure> {
    let target = words::<ReceiveArgs>(&args.words, 1..=1, "missing snapshot argument")?.remove(0);
    if let Some(option) = args.refused() {
        return Err(Failure::failed(format!("cannot receive: weir does not support zfs receive {option} yet")));
    }
    if call.process().is_none() && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        let why = "Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.";
        return Err(Failure::failed(why));
    }
    let pool = target::open(call, &args.places, &target)?;
    pool.with_pool(|pool| pool.machine.block_on(receive(call, args, pool, &target)))?;
    Ok(0)
}

/// Words a failure as OpenZFS does.
fn failed(doing: &str, error: ReceiveError) -> Failure {
    let why = match error {
        ReceiveError::Truncated => "incomplete stream".to_owned(),
        ReceiveError::Checksum => "checksum mismatch".to_owned(),
        ReceiveError::Decode(error) => format!("invalid backup stream: {error}"),
        ReceiveError::Invalid(why) if why.starts_with("invalid stream") => why,
        ReceiveError::Invalid(why) => format!("invalid backup stream: {why}"),
        ReceiveError::Unsupported(why) => why,
        ReceiveError::Object(error) => error.to_string(),
    };
    Failure::failed(format!("{doing}: {why}"))
}

async fn receive(call: &Call, args: &ReceiveArgs, pool: &WritablePool, target: &str) -> Result<(), Failure> {
    let mut source = CallInput(call);
    let mut input = StreamInput::new(&mut source);
    let plain = |error| failed("cannot receive", error);
    let mut in_package = false;
    loop {
        let record = input.next().await.map_err(plain)?.ok_or_else(|| plain(ReceiveError::Truncated))?.record;
        let begin = match record {
            Record::Begin(begin) => begin,
            // The end of the package.
            Record::End { .. } if in_package => return Ok(()),
            _ => return Err(plain(ReceiveError::Invalid("a stream that does not begin with BEGIN".into()))),
        };
        check_features(&begin).map_err(plain)?;
        if !begin.to_name.contains(&b'@') {
            return Err(plain(ReceiveError::Invalid("invalid stream (bad snapshot name)".into())));
        }
        match begin.header_type {
            COMPOUND if !in_package && begin.payload_len == 0 => {
                in_package = true;
                match input.next().await.map_err(plain)?.map(|received| received.record) {
                    Some(Record::End { .. }) => {}
                    _ => return Err(plain(ReceiveError::Invalid("a package without the end of its head".into()))),
                }
            }
            COMPOUND => {
                let why = "weir does not receive packages with properties (zfs send -p, -R) yet";
                return Err(plain(ReceiveError::Unsupported(why.into())));
            }
            ONE_SNAPSHOT => {
                one(call, args, pool, target, begin, &mut input).await?;
                if !in_package {
                    return Ok(());
                }
            }
            _ => return Err(plain(ReceiveError::Invalid("a stream of unknown kind".into()))),
        }
    }
}

/// Receives the stream of one snapshot.
async fn one(
    call: &Call,
    args: &ReceiveArgs,
    pool: &WritablePool,
    target: &str,
    begin: Begin,
    input: &mut StreamInput<'_>,
) -> Result<(), Failure> {
    let rq = &Request::internal("receive");
    let is_new = begin.from_guid == 0 || begin.flags & IS_CLONE != 0;
    let doing = if is_new { "cannot receive new filesystem stream" } else { "cannot receive incremental stream" };
    let sent = String::from_utf8_lossy(&begin.to_name).into_owned();
    let snapshot = args.destination(target, &sent)?;
    let kind = match begin.objset_type {
        n if n == ObjsetKind::Zfs as u32 => ObjsetKind::Zfs,
        n if n == ObjsetKind::Zvol as u32 => ObjsetKind::Zvol,
        other => return Err(failed(doing, ReceiveError::Invalid(format!("invalid record type: {other:#x}")))),
    };
    let origin = match begin.flags & IS_CLONE {
        0 => None,
        _ => {
            let found = origin_of(rq, pool, begin.from_guid).await.map_err(|error| refused(doing, error))?;
            let why = || Failure::failed(format!("{doing}: local origin for clone {snapshot} does not exist"));
            Some(found.ok_or_else(why)?)
        }
    };
    if args.verbose {
        let how = if args.dry_run { "would receive" } else { "receiving" };
        let what = if begin.from_guid == 0 { "full" } else { "incremental" };
        outln!(call, "{how} {what} stream of {sent} into {snapshot}");
    }
    if args.dry_run {
        return skip(input).await.map_err(|error| failed(doing, error));
    }
    let receive = Receive {
        snapshot,
        to_guid: begin.to_guid,
        from_guid: begin.from_guid,
        creation_time_s: begin.creation_time_s,
        ignores_case: begin.flags & IGNORES_CASE != 0,
        kind,
        origin,
        force: args.force,
    };
    let name = receive.names().0.to_owned();
    let engine = &pool.engine;
    let session = engine.receives().begin(rq, receive).await.map_err(|error| refused(doing, error))?;
    if let Err(error) = apply(rq, &mut Applier::new(session.set.clone(), begin), input).await {
        engine.receives().abandon(session).await.map_err(|error| refused(doing, error))?;
        return Err(failed(doing, error));
    }
    let effect = MountEffect { name, recursive: false, change: MountChange::New };
    let mounts = session.is_new() && kind == ObjsetKind::Zfs;
    let suspended = match mounts {
        true => pool.prepare_mounts(&effect, args.no_mount).await.map_err(|refusal| refused(doing, refusal))?,
        false => Vec::new(),
    };
    let done = engine.receives().end(session).await.map_err(|error| refused(doing, error));
    if mounts {
        let settled = pool.settle_mounts(&effect, args.no_mount, suspended).await;
        settled.map_err(|refusal| refused(doing, refusal))?;
    }
    done?;
    target::run_as(call, doing, async |author| match std::mem::take(&mut author.command) {
        line if line.is_empty() => Ok(()),
        line => engine.log_command(line, author.uid).await,
    })
    .await
}

/// Applies records until END.
async fn apply(rq: &Request, applier: &mut Applier, input: &mut StreamInput<'_>) -> Result<(), ReceiveError> {
    loop {
        let received = input.next().await?.ok_or(ReceiveError::Truncated)?;
        if let Record::End { .. } = received.record {
            return Ok(());
        }
        applier.apply(rq, &received.record, received.payload).await?;
    }
}

/// Reads records until END.
async fn skip(input: &mut StreamInput<'_>) -> Result<(), ReceiveError> {
    loop {
        if let Record::End { .. } = input.next().await?.ok_or(ReceiveError::Truncated)?.record {
            return Ok(());
        }
    }
}

/// The full name of the snapshot with this GUID.
async fn origin_of(rq: &Request, pool: &WritablePool, guid: u64) -> Result<Option<String>, PoolError> {
    let dsl = pool.engine.synced().dsl(rq).await?;
    let dsl: &Dsl = &dsl;
    for dir in dsl.dirs() {
        let list = dsl.snapshots(rq, dir).await?;
        if let Some(found) = list.snapshots.iter().find(|snapshot| snapshot.phys.guid == guid) {
            return Ok(Some(found.name.clone()));
        }
    }
    Ok(None)
}

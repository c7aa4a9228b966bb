//! `zfs receive`: makes datasets and snapshots of a stream on standard input.

mod destination;
mod follow;
mod one;
mod overrides;

pub use destination::find_guid;

use super::target::{self, words};
use crate::args::CommandLine;
use crate::call::{Call, Input as CallerInput, errln, outln};
use crate::failure::Failure;
use crate::options::Places;
use crate::writable::{WritablePool, refused};
use clap::Parser;
use destination::DryRun;
use follow::Follower;
use futures_util::future::BoxFuture;
use overrides::Overrides;
use weir_admin::{Action, Author, Change, Refusal};
use weir_dsl::Dsl;
use weir_dsl::props::ZfsProp;
use weir_dsl::sync_tasks::Setting;
use weir_format::NvList;
use weir_format::stream::{Begin, Record, feature};
use weir_machine::Request;
use weir_pool::PoolError;
use weir_send::check::check_features;
use weir_send::plan::{COMPOUND, ONE_SNAPSHOT};
use weir_send::{Input, Package, ReceiveError, StreamInput};

/// Bytes that are read from standard input at once.
const CHUNK_BYTES: u32 = 64 << 10;

/// Create datasets and snapshots from a stream on standard input.
#[derive(Debug, Parser)]
#[command(
    name = "zfs receive",
    disable_help_flag = true,
    override_usage = "zfs receive [-vMnsFhu] [-o origin=SNAPSHOT] [-o PROPERTY=VALUE]… [-x PROPERTY]… [--dir DIR]… FILESYSTEM|VOLUME|SNAPSHOT\n       zfs receive [-vMnsFhu] [-o origin=SNAPSHOT] [-o PROPERTY=VALUE]… [-x PROPERTY]… [-d|-e] [--dir DIR]… FILESYSTEM\n       zfs receive [--dir DIR]… -A <filesystem|volume>"
)]
pub struct ReceiveArgs {
    /// Discard changes and snapshots since the origin of the stream
    #[arg(short = 'F')]
    force: bool,
    /// Do not mount the file systems
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
    /// Receive no holds
    #[arg(short = 'h')]
    no_holds: bool,
    /// Accepted, since mounts of this process end by themselves where that is necessary
    #[arg(short = 'M')]
    force_unmount: bool,
    /// Set a property, or the origin of a clone, instead of what the stream says
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Leave out a property of the stream
    #[arg(short = 'x', value_name = "PROPERTY")]
    excluded: Vec<String>,
    /// Keep what was received if the stream is interrupted, so that it can be continued
    #[arg(short = 's')]
    resumable: bool,
    /// Destroy what was received of an interrupted stream
    #[arg(short = 'A')]
    abort: bool,
    /// Refused: not supported yet
    #[arg(short = 'c')]
    corrective: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    places: Places,
    /// File system, volume or snapshot
    #[arg(value_name = "NAME")]
    words: Vec<String>,
}

impl ReceiveArgs {
    /// The first option that is not supported.
    fn refused(&self) -> Option<&'static str> {
        self.corrective.then_some("-c")
    }

    /// Whether the sender's name is appended to the target's.
    fn is_prefix(&self) -> bool {
        self.without_pool || self.last_part
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
    let overrides = Overrides::parse(&args.properties, &args.excluded)?;
    if args.abort {
        return abort(call, args, &target);
    }
    if call.process().is_none() && std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        let why = "Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.";
        return Err(Failure::failed(why));
    }
    let pool = target::open(call, &args.places, &target)?;
    pool.with_pool(|pool| {
        let (uid, gid) = call.caller.ids;
        let receiving = Receiving {
            call,
            args,
            overrides: &overrides,
            pool,
            target: &target,
            rq: Request::internal("receive"),
            author: Author::new((uid, gid), crate::command_target::now(), call.note()),
            sent_top: None,
            package: Package::default(),
            has_list: false,
            top: None,
            takes_holds: false,
            dry_run: DryRun::default(),
        };
        pool.machine.block_on(receiving.run())
    })
}

/// Destroys what was received of an interrupted stream.
fn abort(call: &Call, args: &ReceiveArgs, target: &str) -> Result<u8, Failure> {
    if args.is_prefix() || args.dry_run || args.resumable || args.no_mount {
        return Err(ReceiveArgs::misused("invalid option"));
    }
    let pool = target::open(call, &args.places, target)?;
    let doing = format!("cannot abort receive into '{target}'");
    pool.with_pool(|pool| {
        let discarded = pool.machine.block_on(pool.engine.receives().discard(target, false));
        if !discarded.map_err(|error| refused(&doing, error))? {
            let why = format!("'{target}' does not have any resumable receive state to abort");
            return Err(Failure::failed(why));
        }
        pool.machine.block_on(target::run_as(call, &doing, async |author| {
            pool.engine.log_command(std::mem::take(&mut author.command), author.uid)
        }))
    })?;
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

fn plain(error: ReceiveError) -> Failure {
    failed("cannot receive", error)
}

fn plain_refusal(error: impl Into<Refusal>) -> Failure {
    refused("cannot receive", error)
}

/// A command that receives.
struct Receiving<'a> {
    call: &'a Call,
    args: &'a ReceiveArgs,
    overrides: &'a Overrides,
    pool: &'a WritablePool,
    target: &'a str,
    rq: Request,
    author: Author,
    /// Name of the first dataset that the sender sent.
    sent_top: Option<String>,
    /// The package; empty if the stream is none.
    package: Package,
    /// Whether the package has a list.
    has_list: bool,
    /// Name of the first dataset that was received into.
    top: Option<String>,
    /// Whether the stream has holds, which are wanted.
    takes_holds: bool,
    dry_run: DryRun,
}

impl Receiving<'_> {
    async fn run(mut self) -> Result<u8, Failure> {
        let mut source = CallInput(self.call);
        let mut input = StreamInput::new(&mut source);
        let first = match input.next().await {
            Ok(Some(first)) => first,
            Ok(None) | Err(ReceiveError::Truncated) => {
                return Err(Failure::failed("cannot receive: failed to read from stream"));
            }
            Err(error) => return Err(plain(error)),
        };
        let Record::Begin(begin) = first.record else {
            return Err(plain(ReceiveError::Invalid("a stream that does not begin with BEGIN".into())));
        };
        self.check(&begin)?;
        self.check_prefix().await?;
        self.sent_top = sent_dataset(&begin);
        match begin.header_type {
            ONE_SNAPSHOT => self.one(begin, &first.payload, &mut input).await.map(|()| 0),
            _ => self.package(&begin, &first.payload, &mut input).await,
        }
    }

    /// With `-d` and `-e`, the dataset to whose name the sender's is appended must exist (`zfs_receive_impl`).
    async fn check_prefix(&self) -> Result<(), Failure> {
        let target = self.target;
        // A snapshot is refused later, with its own reason.
        if !self.args.is_prefix() || target.contains('@') {
            return Ok(());
        }
        match self.datasets(async |_, dsl| Ok(dsl.dir_named(target).is_some())).await? {
            true => Ok(()),
            false => Err(Failure::failed(format!("cannot receive: specified fs ({target}) does not exist"))),
        }
    }

    /// Checks a BEGIN record.
    fn check(&mut self, begin: &Begin) -> Result<(), Failure> {
        check_features(begin).map_err(plain)?;
        if !begin.to_name.contains(&b'@') {
            return Err(plain(ReceiveError::Invalid("invalid stream (bad snapshot name)".into())));
        }
        if begin.header_type != ONE_SNAPSHOT && begin.header_type != COMPOUND {
            return Err(plain(ReceiveError::Invalid("a stream of unknown kind".into())));
        }
        self.takes_holds |= begin.features & feature::HOLDS != 0 && !self.args.no_holds;
        Ok(())
    }

    /// Receives the streams of a package.
    async fn package(&mut self, begin: &Begin, list: &[u8], input: &mut StreamInput<'_>) -> Result<u8, Failure> {
        if !list.is_empty() {
            let decoded = NvList::decode(list);
            let malformed = |_| plain(ReceiveError::Invalid("invalid stream (malformed nvlist)".into()));
            self.package = Package::from_list(&decoded.map_err(malformed)?).map_err(plain)?;
            self.has_list = true;
        }
        let is_recursive = !self.has_list || self.package.is_recursive;
        if is_recursive && self.target.contains('@') {
            let why = "cannot specify snapshot name for multi-snapshot stream";
            return Err(Failure::failed(format!("cannot receive: {why}")));
        }
        match input.next().await.map_err(plain)?.map(|received| received.record) {
            Some(Record::End { .. }) => {}
            _ => return Err(plain(ReceiveError::Invalid("a package without the end of its head".into()))),
        }
        let follows = self.has_list && self.package.is_recursive && self.package.from.is_some();
        let of = self.destination(&String::from_utf8_lossy(&begin.to_name))?;
        let of = of.split('@').next().unwrap_or_default().to_owned();
        let mut is_incomplete = false;
        if follows {
            is_incomplete |= !Follower::new(self).follow(&of).await?;
        }
        loop {
            let next = input.next().await.map_err(plain)?.ok_or_else(|| plain(ReceiveError::Truncated))?;
            match next.record {
                Record::Begin(begin) if begin.header_type == ONE_SNAPSHOT => {
                    self.check(&begin)?;
                    self.one(begin, &next.payload, input).await?;
                }
                Record::End { .. } => break,
                _ => return Err(plain(ReceiveError::Invalid("a record between the streams of a package".into()))),
            }
        }
        if follows {
            // Now that the datasets exist, others can be renamed into them.
            is_incomplete = !Follower::new(self).follow(&of).await?;
        }
        if self.package.is_raw && !self.args.dry_run {
            self.set_encryption_roots().await?;
        }
        Ok(u8::from(is_incomplete))
    }

    /// Makes the encryption roots below the first dataset those of the sender, with their key locations
    /// (`recv_fix_encryption_hierarchy`). The first one stays a root, since the key of the sender's parent is not here.
    async fn set_encryption_roots(&self) -> Result<(), Failure> {
        let top = self.top.clone().unwrap_or_default();
        for sent in &self.package.datasets {
            let Some(guid) = sent.snapshots.last().map(|snapshot| snapshot.guid) else { continue };
            let found = self.datasets(async |rq, dsl| find_guid(rq, dsl, &top, guid).await).await?;
            let name = found.as_deref().and_then(|snapshot| snapshot.split('@').next()).unwrap_or_default();
            let failed = |error| refused(&format!("cannot receive: encryption root of {name}"), error);
            match name.strip_prefix(&top) {
                Some("") => {}
                Some(rest) if rest.starts_with('/') => {
                    let set = self.pool.engine.receives().set_encryption_root(name, sent.is_encryption_root).await;
                    set.map_err(failed)?;
                }
                // The nearest may be one of another tree: the sender's own.
                _ => continue,
            }
            let location = sent.properties.iter().flatten().find(|(name, _)| name == ZfsProp::KeyLocation.name());
            if let Some((property, value)) = location.filter(|_| sent.is_encryption_root) {
                let setting = (property.clone(), Setting::Set(value.clone()));
                let properties = self.pool.engine.properties();
                properties.set_properties(name.to_owned(), vec![setting]).await.map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Writes the command line into the pool's history, once.
    fn record(&mut self) -> Result<(), Failure> {
        match std::mem::take(&mut self.author.command) {
            line if line.is_empty() => Ok(()),
            line => {
                let logged = self.pool.engine.log_command(line, self.author.uid);
                self.call.noted();
                logged.map_err(plain_refusal)
            }
        }
    }

    /// Runs `look` on the datasets as of now.
    async fn datasets<T>(&self, look: impl AsyncFnOnce(&Request, &Dsl) -> Result<T, PoolError>) -> Result<T, Failure> {
        let dsl = self.pool.engine.synced().dsl(&self.rq).await.map_err(plain_refusal)?;
        look(&self.rq, &dsl).await.map_err(plain_refusal)
    }

    /// Runs a change; the mounts of the process follow.
    async fn change(&mut self, change: Change) -> Result<(), Refusal> {
        let action = if self.args.no_mount { Action::ChangeWithoutMounts(change) } else { Action::Change(change) };
        action.run(self.pool, &mut self.author).await.map(drop)
    }

    /// Prints a line about what is done, with `-v`.
    fn say(&self, line: &str) {
        if self.args.verbose {
            outln!(self.call, "{line}");
        }
    }

    fn warn(&self, line: &str) {
        errln!(self.call, "{line}");
    }
}

/// The dataset of the snapshot that a stream begins with.
fn sent_dataset(begin: &Begin) -> Option<String> {
    String::from_utf8_lossy(&begin.to_name).split_once('@').map(|(of, _)| of.to_owned())
}

//! `zfs send`: the stream of a snapshot, or a package of streams, on standard output.

mod progress;
mod source;

use super::target::{pool_of, words};
use crate::args::CommandLine;
use crate::call::{Call, errln};
use crate::failure::Failure;
use crate::options::Places;
use crate::pools::{PoolHandle, keys_of, look, search};
use clap::Parser;
use progress::{Announcer, CallOutput};
use source::{Resumed, Source, Wanted};
use std::io::IsTerminal;
use weir_dmu::ObjectError;
use weir_dsl::ResumeState;
use weir_format::Endian;
use weir_format::stream::{Begin, Record, feature};
use weir_machine::Request;
use weir_pool::OpenOptions;
use weir_send::encoder::package_head;
use weir_send::replicate::{Range, Step};
use weir_send::{Gathering, Output, Package, PackagedDataset, SendError, SendFlags, SendNames};

/// Write the stream of a snapshot to standard output.
#[derive(Debug, Parser)]
#[command(
    name = "zfs send",
    disable_help_flag = true,
    override_usage = "zfs send [-DLPUbcehnpsvw] [-R [-X DATASET[,DATASET]…]] [-i SNAPSHOT|BOOKMARK | -I SNAPSHOT] [--dir DIR]… SNAPSHOT\n       zfs send [-DLPcenpv] [-i SNAPSHOT|BOOKMARK] --redact BOOKMARK [--dir DIR]… SNAPSHOT\n       zfs send [-nPv] [--dir DIR]… -t <receive_resume_token>"
)]
pub struct SendArgs {
    /// Send the changes since this snapshot or bookmark
    #[arg(short = 'i', value_name = "SNAPSHOT|BOOKMARK")]
    from: Vec<String>,
    /// Send the changes since this snapshot, with the snapshots between
    #[arg(short = 'I', value_name = "SNAPSHOT")]
    all_from: Vec<String>,
    /// Send blocks of more than 128 KiB whole
    #[arg(short = 'L', long = "large-block")]
    large_blocks: bool,
    /// Send embedded blocks as they are
    #[arg(short = 'e', long = "embed")]
    embedded: bool,
    /// Send compressed blocks as they are
    #[arg(short = 'c', long = "compressed")]
    compressed: bool,
    /// Send the datasets below as well, with all snapshots and properties
    #[arg(short = 'R', long = "replicate")]
    replicate: bool,
    /// Leave out datasets without the snapshot
    #[arg(short = 's', long = "skip-missing")]
    skip_missing: bool,
    /// Leave out these datasets and those below
    #[arg(short = 'X', long = "exclude", value_name = "DATASET", value_delimiter = ',')]
    excluded: Vec<String>,
    /// Send properties as well
    #[arg(short = 'p', long = "props")]
    props: bool,
    /// Send received properties instead of those that are set here
    #[arg(short = 'b', long = "backup")]
    backup: bool,
    /// Send holds as well
    #[arg(short = 'h', long = "holds")]
    holds: bool,
    /// Send encrypted datasets with properties, without their encryption
    #[arg(short = 'U', long = "no-preserve-encryption")]
    decrypted: bool,
    /// Send nothing: only check, and estimate with -v
    #[arg(short = 'n', long = "dryrun")]
    dry_run: bool,
    /// Print estimated sizes, and the progress each second
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    verbose: u8,
    /// Print exact numbers, separated by tabs
    #[arg(short = 'P', long = "parsable")]
    parsable: bool,
    /// Ignored, as by OpenZFS: this process has no title of its own
    #[arg(short = 'V', long = "proctitle")]
    title: bool,
    /// Ignored with a warning, as by OpenZFS since 2.0
    #[arg(short = 'D', long = "dedup")]
    dedup: bool,
    /// Send encrypted datasets as they are on disk, without their keys
    #[arg(short = 'w', long = "raw")]
    raw: bool,
    /// Refused: not supported yet
    #[arg(short = 'S', long = "saved")]
    saved: bool,
    /// Continue an interrupted stream: the token is the receiver's property receive_resume_token
    #[arg(short = 't', long = "resume", value_name = "TOKEN")]
    token: Option<String>,
    /// Leave out the blocks in the redaction list of this bookmark of the snapshot's dataset
    #[arg(short = 'd', long = "redact", value_name = "BOOKMARK")]
    redact: Option<String>,
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
    /// The names of a stream relative to `from`.
    fn names<'a>(&'a self, from: Option<&'a str>) -> SendNames<'a> {
        SendNames { from, redact: self.redact.as_deref() }
    }

    fn flags(&self) -> SendFlags {
        SendFlags {
            large_blocks: self.large_blocks,
            embedded: self.embedded,
            compressed: self.compressed,
            raw: self.raw,
        }
    }

    /// Whether estimates are printed.
    fn estimates(&self) -> bool {
        self.verbose > 0 || self.parsable
    }

    /// The snapshot or bookmark of `-i` or `-I`.
    fn base(&self) -> Option<&String> {
        self.from.first().or(self.all_from.first())
    }

    /// Whether the streams are those of a range of snapshots, rather than one of a snapshot.
    fn is_range(&self) -> bool {
        self.replicate || !self.all_from.is_empty()
    }

    /// Whether a package's head has a list.
    fn has_list(&self) -> bool {
        self.replicate || self.props || self.holds || self.backup && !self.is_range()
    }

    /// Whether the streams are in a package.
    fn is_package(&self) -> bool {
        self.is_range() || self.has_list() || self.backup
    }

    /// The state of the interrupted stream that the command continues.
    fn resumed(&self, token: &str) -> Result<ResumeState, Failure> {
        let is_other = !self.from.is_empty() || self.is_package() || self.saved || self.redact.is_some();
        if is_other {
            return Err(SendArgs::misused("invalid flags combined with -t"));
        }
        if !self.words.is_empty() {
            return Err(SendArgs::misused("too many arguments"));
        }
        ResumeState::from_token(token).map_err(|why| Failure::failed(format!("cannot resume send: {why}")))
    }

    /// Checks the combination of options (OpenZFS `zfs_do_send`).
    fn check(&self, to: &str) -> Result<(), Failure> {
        if self.saved {
            return Err(Failure::failed(format!("cannot send '{to}': weir does not support zfs send -S yet")));
        }
        if self.raw && self.redact.is_some() {
            return Err(Failure::failed("Error: raw sends may not be redacted."));
        }
        if !self.excluded.is_empty() && !self.replicate {
            return Err(Failure::failed("Cannot specify dataset exclusion (-X) on a non-recursive send."));
        }
        if self.skip_missing && !self.replicate {
            return Err(SendArgs::misused("skip-missing flag can only be used in conjunction with replicate"));
        }
        if self.from.len() + self.all_from.len() > 1 {
            return Err(SendArgs::misused("-i and -I name one snapshot, once"));
        }
        let from = self.base();
        if self.is_range() && from.is_some_and(|from| from.contains('#')) {
            return Err(Failure::failed("Error: multiple snapshots cannot be sent from a bookmark."));
        }
        if self.is_range() && self.redact.is_some() {
            return Err(Failure::failed("Error: multiple snapshots cannot be sent redacted."));
        }
        Ok(())
    }
}

/// Runs the command.
pub fn run(call: &Call, args: &SendArgs) -> Result<u8, Failure> {
    let resumed = args.token.as_deref().map(|token| args.resumed(token)).transpose()?;
    let to = match &resumed {
        Some(state) => state.to_name.clone(),
        None => words::<SendArgs>(&args.words, 1..=1, "missing snapshot argument")?.remove(0),
    };
    args.check(&to)?;
    if args.dedup {
        let what =
            "deduplicated send is no longer supported.  A regular,\nnon-deduplicated stream will be generated.\n";
        errln!(call, "WARNING: {what}");
    }
    if !args.dry_run && call.process().is_none() && std::io::stdout().is_terminal() {
        let why = "Error: Stream can not be written to a terminal.\nYou must redirect standard output.";
        return Err(Failure::failed(why));
    }
    let from = args.base().map(|from| whole_name(from, &to));
    let pool = pool_of(&to).to_owned();
    let mut options = OpenOptions::new(search(call, &args.places.dirs)?, &pool);
    options.keys = keys_of(call, &options.search, &args.places.keys)?;
    let seen = look(call, &options)?;
    if !to.contains('@') {
        // Programs take exit code 2 as an unknown option.
        let why = "weir sends snapshots, and not what datasets have now: 'zfs snapshot' makes one";
        return Err(Failure::failed(format!("cannot send '{to}': {why}")));
    }
    call.begin();
    let machine = call.machine()?;
    let rq = Request::internal("send");
    let source = match (&seen, call.served_pool(&pool)) {
        (PoolHandle::Open(_), Some(served_pool)) => Source::Served(served_pool.engine.clone()),
        _ => Source::AtRest(&seen),
    };
    let mut sending = Sending { call, args, rq: &rq, source, output: CallOutput::new(call, machine) };
    if let Some(state) = &resumed {
        let unable = |error| Failure::failed(format!("cannot resume send: {error}"));
        return machine.block_on(sending.resume(state)).map_err(unable);
    }
    machine.block_on(sending.run(from.as_deref(), &to)).map_err(|error| failure(&to, error))
}

fn failure(to: &str, error: SendError) -> Failure {
    match error {
        SendError::Unsupported(what) => Failure::failed(format!("cannot send '{to}': weir does not send {what} yet")),
        SendError::Whole(line) => Failure::failed(line),
        SendError::Object(ObjectError::NoName { what: "dataset", name }) => {
            Failure::failed(format!("cannot open '{name}': dataset does not exist"))
        }
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

/// A command that sends.
struct Sending<'a> {
    call: &'a Call,
    args: &'a SendArgs,
    rq: &'a Request,
    source: Source<'a>,
    output: CallOutput<'a>,
}

impl Sending<'_> {
    async fn run(&mut self, from: Option<&str>, to: &str) -> Result<u8, SendError> {
        let (top, short) = to.split_once('@').unwrap_or((to, ""));
        let mut range = None;
        if self.args.is_range() {
            range = Some(self.range(from, top, short).await?);
        }
        let gathering = self.args.has_list().then(|| self.gathering(range.as_ref(), short));
        let call = self.call;
        let mut warn = |line: String| errln!(call, "{line}");
        let plan = self.source.plan(self.rq, top, gathering.as_ref(), range.as_ref(), &mut warn).await?;
        let one = [Step { to: to.to_owned(), from: from.map(str::to_owned), is_next: true }];
        let steps = if range.is_some() { plan.steps.steps.as_slice() } else { one.as_slice() };
        if steps.is_empty() {
            return Ok(1);
        }
        // Errors of the names come before the first byte.
        if self.args.estimates() || self.args.dry_run {
            self.estimate(steps).await?;
        }
        if self.args.dry_run {
            return Ok(u8::from(plan.steps.is_incomplete));
        }
        if self.args.is_package() {
            let first = range.as_ref().and_then(|range| range.from.as_deref());
            self.head(to, first, &plan.datasets).await?;
        }
        for step in steps {
            if self.args.verbose > 0 {
                self.output.begin(&step.to, self.args.parsable);
            }
            let names = (self.args.names(step.from.as_deref()), step.to.as_str());
            self.source
                .one(self.rq, names, self.args.flags(), Wanted::Stream { output: &mut self.output, from_point: None })
                .await?;
        }
        if self.args.is_package() {
            // A package ends with a record without a checksum.
            self.output.put(Record::End { checksum: [0; 4], to_guid: 0 }.encode(Endian::Little, [0; 4])).await?;
        }
        Ok(u8::from(plan.steps.is_incomplete))
    }

    /// Sends the rest of an interrupted stream (OpenZFS `zfs_send_resume_impl_cb_impl`).
    async fn resume(&mut self, state: &ResumeState) -> Result<u8, SendError> {
        let args = self.args;
        let flags = SendFlags {
            large_blocks: args.large_blocks || state.forms.large_blocks,
            embedded: args.embedded || state.forms.embedded,
            compressed: args.compressed || state.forms.compressed,
            raw: args.raw || state.forms.raw,
        };
        let Resumed { to, from, redact } = self.source.resumed(self.rq, state).await?;
        let names = (SendNames { from: from.as_deref(), redact: redact.as_deref() }, to.as_str());
        if args.estimates() {
            let announcer = Announcer { call: self.call, parsable: args.parsable, to_output: args.dry_run };
            announcer.token(state);
            let whole = self.source.one(self.rq, names, flags, Wanted::Estimate).await?;
            let rest = whole.saturating_sub(state.bytes);
            announcer.stream(names.0.from, names.1, rest);
            announcer.total(rest);
        }
        if args.dry_run {
            return Ok(0);
        }
        if args.verbose > 0 {
            self.output.begin(&to, args.parsable);
        }
        let point = Some((state.object, state.offset));
        let wanted = Wanted::Stream { output: &mut self.output, from_point: point };
        self.source.one(self.rq, names, flags, wanted).await.map(|_| 0)
    }

    /// The range of snapshots that is sent.
    async fn range(&self, from: Option<&str>, top: &str, to: &str) -> Result<Range, SendError> {
        let mut range = Range {
            to: to.to_owned(),
            all: !self.args.all_from.is_empty() || from.is_none(),
            replicate: self.args.replicate,
            ..Range::default()
        };
        match from {
            Some(from) if self.source.origin(self.rq, top).await?.as_deref() == Some(from) => {
                range.from_origin = true;
                range.all = true;
            }
            Some(from) => match from.split_once('@') {
                Some((of, short)) if of == top => range.from = Some(short.to_owned()),
                _ => return Err(SendError::Whole("incremental source must be in same filesystem".into())),
            },
            None => {}
        }
        Ok(range)
    }

    /// The contents of the package.
    fn gathering(&self, range: Option<&Range>, to: &str) -> Gathering {
        let args = self.args;
        Gathering {
            from: range.and_then(|range| range.from.clone()),
            to: Some(to.to_owned()),
            recursive: args.replicate,
            all: range.is_some_and(|range| range.all),
            skip_missing: args.skip_missing,
            received: args.backup,
            holds: args.holds,
            properties: args.props,
            encrypted: args.decrypted || args.raw,
            excluded: args.excluded.clone(),
        }
    }

    async fn estimate(&mut self, steps: &[Step]) -> Result<(), SendError> {
        let announcer = Announcer { call: self.call, parsable: self.args.parsable, to_output: self.args.dry_run };
        let mut total = 0u64;
        for step in steps {
            let names = (self.args.names(step.from.as_deref()), step.to.as_str());
            if !self.args.is_range() {
                let bytes = self.source.one(self.rq, names, self.args.flags(), Wanted::Estimate).await?;
                total = bytes;
                if self.args.estimates() {
                    announcer.stream(names.0.from, names.1, bytes);
                }
                continue;
            }
            if self.args.estimates() {
                // Of the first stream of a clone, OpenZFS says the size of the whole snapshot.
                let from = names.0.from.filter(|_| step.is_next);
                let of = (self.args.names(from), names.1);
                let bytes = self.source.one(self.rq, of, self.args.flags(), Wanted::Estimate).await?;
                announcer.stream(from.and_then(|from| from.split('@').nth(1)), names.1, bytes);
                total = total.saturating_add(bytes);
            }
        }
        if self.args.estimates() {
            announcer.total(total);
        }
        Ok(())
    }

    /// Writes the head of the package.
    async fn head(&mut self, to: &str, from: Option<&str>, datasets: &[PackagedDataset]) -> Result<(), SendError> {
        let list = match self.args.has_list() {
            true => {
                let package = Package {
                    from: from.map(str::to_owned),
                    to: to.split('@').nth(1).unwrap_or_default().to_owned(),
                    is_recursive: self.args.replicate,
                    is_raw: self.args.raw,
                    datasets: datasets.to_vec(),
                };
                package.to_list().encode_xdr()
            }
            false => Vec::new(),
        };
        if list.len() > weir_send::package::MAX_LIST_BYTES {
            return Err(SendError::Refused(
                "the size of the list of snapshots and properties is too large to be received successfully.\nSelect a smaller number of snapshots to send.".into(),
            ));
        }
        let begin = Begin {
            header_type: weir_send::plan::COMPOUND,
            features: if self.args.holds { feature::HOLDS } else { 0 },
            creation_time_s: 0,
            objset_type: 0,
            flags: 0,
            to_guid: 0,
            from_guid: 0,
            to_name: to.as_bytes().to_vec(),
            payload_len: list.len() as u32,
        };
        self.output.put(package_head(begin, &list)).await
    }
}

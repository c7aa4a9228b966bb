//! `zfs allow`, `zfs unallow`: permissions that administrators delegate to users and groups.
//!
//! They are stored as OpenZFS stores them, so that its kernel module applies them. Weir applies none: who can open the admin
//! socket or the devices may do everything.
//!
//! Source: OpenZFS `cmd/zfs/zfs_main.c` (`zfs_do_allow_unallow_impl`, `store_allow_perm`, `print_fs_perms`),
//! `module/zcommon/zfs_deleg.c`.

use super::identity;
use super::target::{self, pool_of};
use crate::args::CommandLine;
use crate::call::{Call, errln};
use crate::failure::Failure;
use crate::options::Places;
use crate::reading::{PoolReader, refused};
use clap::{Args, Parser};
use std::collections::{BTreeMap, BTreeSet};
use weir_admin::{Change, PermissionsQuery, PermissionsRow, PoolQuery, Row};
use weir_dsl::QuotaPrincipal;
use weir_dsl::props::{Rule, native_named};
use weir_dsl::sync_tasks::delegation::Grants;
use weir_format::znode::Fuid;

/// Permissions besides the names of properties (`zfs_deleg_perm_tab`).
const PERMISSIONS: [&str; 34] = [
    "allow",
    "bookmark",
    "clone",
    "create",
    "destroy",
    "diff",
    "mount",
    "promote",
    "receive",
    "receive:append",
    "rename",
    "rollback",
    "snapshot",
    "share",
    "send",
    "send:raw",
    "send:encrypted",
    "userprop",
    "userquota",
    "groupquota",
    "userused",
    "groupused",
    "userobjquota",
    "groupobjquota",
    "userobjused",
    "groupobjused",
    "hold",
    "release",
    "load-key",
    "change-key",
    "projectused",
    "projectquota",
    "projectobjused",
    "projectobjquota",
];
/// Permissions, each with whether it holds on the dataset, and below.
type PlacesOfPermissions<'a> = BTreeMap<&'a str, (bool, bool)>;

/// Width of the line above the permissions of a dataset.
const TITLE_COLUMNS: usize = 70;

/// Options that say who gets permissions, and where.
#[derive(Args, Debug)]
struct WhoOptions {
    /// On this dataset
    #[arg(short = 'l')]
    local: bool,
    /// On the datasets below
    #[arg(short = 'd')]
    descendants: bool,
    /// The names are those of users
    #[arg(short = 'u')]
    users: bool,
    /// The names are those of groups
    #[arg(short = 'g')]
    groups: bool,
    /// Everyone
    #[arg(short = 'e')]
    everyone: bool,
    /// The creator of a dataset below, on that dataset
    #[arg(short = 'c')]
    creator: bool,
    /// A set of permissions, whose name begins with @
    #[arg(short = 's')]
    set: bool,
    #[command(flatten)]
    places: Places,
}

/// Delegate permissions to users, or show those of a dataset.
///
/// They are stored and shown. OpenZFS's kernel module applies them to its commands; Weir's commands need no permissions.
#[derive(Debug, Parser)]
#[command(
    name = "zfs allow",
    override_usage = "zfs allow [--dir DIR]… FILESYSTEM|VOLUME\n       zfs allow [-dglu] USER|GROUP[,…] PERMISSION|@SET[,…] FILESYSTEM|VOLUME\n       zfs allow [-dl] -e|everyone PERMISSION|@SET[,…] FILESYSTEM|VOLUME\n       zfs allow -c PERMISSION|@SET[,…] FILESYSTEM|VOLUME\n       zfs allow -s @SET PERMISSION|@SET[,…] FILESYSTEM|VOLUME"
)]
pub struct AllowArgs {
    #[command(flatten)]
    who: WhoOptions,
    /// Who, the permissions, and the dataset
    #[arg(value_name = "WHO PERMISSIONS DATASET")]
    words: Vec<String>,
}

/// Take delegated permissions back.
#[derive(Debug, Parser)]
#[command(
    name = "zfs unallow",
    override_usage = "zfs unallow [-dglru] USER|GROUP[,…] [PERMISSION|@SET[,…]] FILESYSTEM|VOLUME\n       zfs unallow [-dlr] -e|everyone [PERMISSION|@SET[,…]] FILESYSTEM|VOLUME\n       zfs unallow [-r] -c [PERMISSION|@SET[,…]] FILESYSTEM|VOLUME\n       zfs unallow [-r] -s @SET [PERMISSION|@SET[,…]] [--dir DIR]… FILESYSTEM|VOLUME"
)]
pub struct UnallowArgs {
    /// Also on all datasets below
    #[arg(short)]
    recursive: bool,
    #[command(flatten)]
    who: WhoOptions,
    /// Who, the permissions, default: all, and the dataset
    #[arg(value_name = "WHO PERMISSIONS DATASET")]
    words: Vec<String>,
}

/// Runs `zfs allow`.
pub fn allow(call: &Call, args: &AllowArgs) -> Result<u8, Failure> {
    if let [dataset] = args.words.as_slice() {
        return show(call, &args.who.places, dataset);
    }
    let (grants, dataset) = grants::<AllowArgs>(&args.who, &args.words, false)?;
    let change = Change::Delegate { name: dataset.clone(), grants, removes: false, recursive: false };
    target::once(call, &args.who.places, &dataset, &format!("cannot set permissions on '{dataset}'"), change)
}

/// Runs `zfs unallow`.
pub fn unallow(call: &Call, args: &UnallowArgs) -> Result<u8, Failure> {
    let (grants, dataset) = grants::<UnallowArgs>(&args.who, &args.words, true)?;
    let change = Change::Delegate { name: dataset.clone(), grants, removes: true, recursive: args.recursive };
    target::once(call, &args.who.places, &dataset, &format!("cannot remove permissions on '{dataset}'"), change)
}

/// Permissions by stored key, and the dataset.
fn grants<C: CommandLine>(who: &WhoOptions, words: &[String], may_be_all: bool) -> Result<(Grants, String), Failure> {
    let kinds = [who.users, who.groups, who.everyone, who.creator, who.set].iter().filter(|is_on| **is_on).count();
    if kinds > 1 {
        return Err(C::misused("-u, -g, -e, -c and -s are mutually exclusive"));
    }
    if (who.creator || who.set) && (who.local || who.descendants) {
        return Err(C::misused("-l and -d do not go with -c and -s"));
    }
    let takes_name = !who.everyone && !who.creator;
    let (name, rest) = match words {
        [name, rest @ ..] if takes_name => (Some(name.as_str()), rest),
        rest => (None, rest),
    };
    let (permissions, dataset) = match rest {
        [permissions, dataset] => (permissions_of::<C>(permissions)?, dataset),
        [dataset] if may_be_all => (Vec::new(), dataset),
        [_] | [] => return Err(C::misused("missing permissions or dataset argument")),
        _ => return Err(C::misused("too many arguments")),
    };
    let places: &[char] = match (who.local, who.descendants) {
        _ if who.creator || who.set => &['-'],
        (true, false) => &['l'],
        (false, true) => &['d'],
        _ => &['l', 'd'],
    };
    let mut out = Vec::new();
    for (letter, id) in holders::<C>(who, name)? {
        for place in places {
            let key = |letter: char| format!("{letter}{place}${id}");
            let (sets, single): (Vec<String>, Vec<String>) =
                permissions.iter().cloned().partition(|p| p.starts_with('@'));
            if permissions.is_empty() || !single.is_empty() {
                out.push((key(letter), single));
            }
            if permissions.is_empty() || !sets.is_empty() {
                out.push((key(letter.to_ascii_uppercase()), sets));
            }
        }
    }
    debug_assert!(!out.is_empty());
    Ok((out, dataset.clone()))
}

fn permissions_of<C: CommandLine>(text: &str) -> Result<Vec<String>, Failure> {
    let one = |name: &str| {
        if PERMISSIONS.contains(&name) || is_set_name(name) {
            return Ok(name.to_owned());
        }
        let property =
            native_named(name).filter(|native| native.rule != Rule::ReadOnly && native.prop.name() != "mlslabel");
        let why = || C::misused(&format!("invalid permission '{name}'"));
        property.map(|native| native.prop.name().to_owned()).ok_or_else(why)
    };
    text.split(',').map(one).collect()
}

/// Whether a text names a set of permissions (`permset_namecheck`).
fn is_set_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
    text.len() > 1 && text.len() < 64 && text.strip_prefix('@').is_some_and(|name| name.chars().all(is_allowed))
}

/// Letter and id of those who are named.
fn holders<C: CommandLine>(who: &WhoOptions, name: Option<&str>) -> Result<Vec<(char, String)>, Failure> {
    match name {
        None if who.creator => Ok(vec![('c', String::new())]),
        None => Ok(vec![('e', String::new())]),
        Some(set) if who.set => match is_set_name(set) {
            true => Ok(vec![('s', set.to_owned())]),
            false => Err(C::misused(&format!("invalid set name '{set}': it begins with '@'"))),
        },
        Some("everyone") if !who.users && !who.groups => Ok(vec![('e', String::new())]),
        Some(names) => {
            let users = identity::names(QuotaPrincipal::User);
            let groups = identity::names(QuotaPrincipal::Group);
            let one = |name: &str| {
                let in_list = |letter: char, list: &str| {
                    let given = name.parse::<u32>().ok().map(u64::from);
                    let by_number = || given.filter(|id| identity::has_number(list, *id));
                    let found = identity::number(list, name).or_else(by_number);
                    found.map(|id| (letter, id.to_string()))
                };
                let any = |letter: char| name.parse::<u32>().ok().map(|id| (letter, id.to_string()));
                let (found, what) = match (who.users, who.groups) {
                    (true, _) => (in_list('u', &users).or_else(|| any('u')), "user"),
                    (_, true) => (in_list('g', &groups).or_else(|| any('g')), "group"),
                    _ => (in_list('u', &users).or_else(|| in_list('g', &groups)), "user/group"),
                };
                found.ok_or_else(|| C::misused(&format!("invalid {what} {name}")))
            };
            names.split(',').map(one).collect()
        }
    }
}

/// Shows the permissions on a dataset and those above it.
fn show(call: &Call, places: &Places, dataset: &str) -> Result<u8, Failure> {
    let mut text = String::new();
    let mut take = |row| match row {
        Row::Permissions(PermissionsRow { dataset, granted }) => text += &shown(&dataset, &granted),
        Row::Warning { name, why } => errln!(call, "{name}: {why}"),
        // Rows of other queries do not occur.
        _ => {}
    };
    let query = PoolQuery::Permissions(PermissionsQuery { dataset: dataset.to_owned() });
    let pools = PoolReader::new(call, &places.dirs)?;
    pools.read(pool_of(dataset), query, &mut take)?.map_err(refused)?;
    call.print(format_args!("{text}"));
    Ok(0)
}

/// The permissions of one dataset as text.
fn shown(name: &str, stored: &[(String, Vec<String>)]) -> String {
    let title = format!("---- Permissions on {name} ");
    let mut out = format!("{title}{}\n", "-".repeat(TITLE_COLUMNS.saturating_sub(title.len())));
    let mut sets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut creators: BTreeSet<&str> = BTreeSet::new();
    // By kind and id: each permission with its places.
    let mut others: BTreeMap<(u8, &str), PlacesOfPermissions<'_>> = BTreeMap::new();
    for (key, permissions) in stored {
        let (Some(letter), Some(place), Some(id)) = (key.chars().next(), key.chars().nth(1), key.get(3..)) else {
            continue;
        };
        let names = permissions.iter().map(String::as_str);
        match letter.to_ascii_lowercase() {
            's' => sets.entry(id).or_default().extend(names),
            'c' => creators.extend(names),
            letter => {
                let order = ["u", "g", "e"].iter().position(|kind| kind.starts_with(letter)).unwrap_or(2) as u8;
                for name in names {
                    let places = others.entry((order, id)).or_default().entry(name).or_default();
                    places.0 |= place == 'l';
                    places.1 |= place == 'd';
                }
            }
        }
    }
    let list = |names: &BTreeSet<&str>| names.iter().copied().collect::<Vec<_>>().join(",");
    if !sets.is_empty() {
        out += "Permission sets:\n";
        sets.iter().for_each(|(set, names)| out += &format!("\t{set} {}\n", list(names)));
    }
    if !creators.is_empty() {
        out += &format!("Create time permissions:\n\t{}\n", list(&creators));
    }
    let lists = [QuotaPrincipal::User, QuotaPrincipal::Group].map(identity::names);
    for (title, wanted) in [("Local", (true, false)), ("Descendent", (false, true)), ("Local+Descendent", (true, true))]
    {
        let mut lines = String::new();
        for ((kind, id), permissions) in &others {
            let names: BTreeSet<&str> =
                permissions.iter().filter(|(_, places)| **places == wanted).map(|(name, _)| *name).collect();
            if names.is_empty() {
                continue;
            }
            let named = |list: &String| {
                id.parse().map_or_else(|_| (*id).to_owned(), |id| identity::name(Fuid(id), false, list))
            };
            let who = match (kind, &lists) {
                (0, [users, _]) => format!("user {}", named(users)),
                (1, [_, groups]) => format!("group {}", named(groups)),
                _ => "everyone".to_owned(),
            };
            lines += &format!("\t{who} {}\n", list(&names));
        }
        if !lines.is_empty() {
            out += &format!("{title} permissions:\n{lines}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(line: &str) -> Result<Vec<(String, Vec<String>)>, String> {
        let words: Vec<_> = line.split_whitespace().map(Into::into).collect();
        let args = AllowArgs::parse_line(&words).unwrap();
        grants::<AllowArgs>(&args.who, &args.words, false).map(|(grants, _)| grants).map_err(|failure| failure.line)
    }

    fn grant(key: &str, names: &[&str]) -> (String, Vec<String>) {
        (key.to_owned(), names.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn permissions_are_stored_under_the_keys_of_openzfs() {
        assert_eq!(
            stored("-u 1000 create,mount p").unwrap(),
            [grant("ul$1000", &["create", "mount"]), grant("ud$1000", &["create", "mount"])]
        );
        assert_eq!(
            stored("-lg 7 @tools,compress p/a").unwrap(),
            [grant("gl$7", &["compression"]), grant("Gl$7", &["@tools"])]
        );
        assert_eq!(stored("-d everyone snapshot p").unwrap(), [grant("ed$", &["snapshot"])]);
        assert_eq!(stored("-de snapshot p").unwrap(), [grant("ed$", &["snapshot"])]);
        assert_eq!(stored("-c destroy p").unwrap(), [grant("c-$", &["destroy"])]);
        assert_eq!(stored("-s @x send,@y p").unwrap(), [grant("s-$@x", &["send"]), grant("S-$@x", &["@y"])]);
        for (line, why) in [
            ("-u 1 fly p", "invalid permission 'fly'"),
            ("-u 1 used p", "invalid permission 'used'"),
            ("-ue 1 mount p", "mutually exclusive"),
            ("-lc mount p", "do not go with"),
            ("-s x mount p", "invalid set name 'x'"),
            ("no-such-user-here mount p", "invalid user/group"),
            ("-u 1 mount", "missing permissions or dataset"),
        ] {
            assert!(stored(line).unwrap_err().contains(why), "{line}");
        }
    }

    #[test]
    fn permissions_look_as_those_of_openzfs() {
        let found = [
            grant("c-$", &["destroy"]),
            grant("ed$", &["snapshot"]),
            grant("s-$@x", &["send"]),
            grant("ud$4000000000", &["create", "mount"]),
            grant("ul$4000000000", &["create"]),
            grant("Ul$4000000000", &["@x"]),
        ];
        let text = "---- Permissions on p/a ----------------------------------------------
Permission sets:
\t@x send
Create time permissions:
\tdestroy
Local permissions:
\tuser 4000000000 @x
Descendent permissions:
\tuser 4000000000 mount
\teveryone snapshot
Local+Descendent permissions:
\tuser 4000000000 create
";
        assert_eq!(shown("p/a", &found), text);
    }
}

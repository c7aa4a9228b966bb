//! The library `zfs` of scripts (zfs-program(8)).
//!
//! ```text
//!   zfs.exists  zfs.get_prop  zfs.debug
//!   zfs.list.NAME(dataset)      an iterator; system_properties: a table
//!   zfs.sync.NAME(…)            changes and returns 0, or refuses and returns an error number
//!   zfs.check.NAME(…)           the same without the change
//! ```
//!
//! Each function takes its arguments in order, or one table with them and the optional ones by name.
//!
//! Source: OpenZFS `module/zfs/zcp.c` (`zcp_parse_args`), `zcp_get.c`, `zcp_iter.c`, `zcp_synctask.c`.

use crate::asked::{Ask, Failure, List, Reply, Word};
use crate::errno;
use crate::run::{Run, bad_argument, fail, type_name};
use mlua::{Error, Lua, MultiValue, Table, Value};
use std::cell::RefCell;
use std::rc::Rc;
use weir_engine::ProgramChange;

/// Maximum length of a usage message in bytes; longer ones are left out.
const MAX_USAGE: usize = 511;
/// `zfs.sync` in a program that may not change the pool.
const READ_ONLY: &str = "running functions from the zfs.sync submodule requires passing sync=TRUE to lzc_channel_program() \
                         (i.e. do not specify the \"-n\" command line argument)";

/// The arguments of a function: texts in order, and one optional boolean.
#[derive(Clone, Copy)]
struct Signature {
    name: &'static str,
    texts: &'static [&'static str],
    option: Option<&'static str>,
}

const fn takes(name: &'static str, texts: &'static [&'static str]) -> Signature {
    Signature { name, texts, option: None }
}

/// The lists, and the name of the argument of each.
const LISTS: [(Signature, List); 8] = [
    (takes("children", &["filesystem | volume"]), List::Children),
    (takes("snapshots", &["filesystem | volume"]), List::Snapshots),
    (takes("user_properties", &["filesystem | snapshot | volume"]), List::UserProperties),
    (takes("properties", &["filesystem | snapshot | volume"]), List::UserProperties),
    (takes("clones", &["snapshot"]), List::Clones),
    (takes("system_properties", &["dataset"]), List::SystemProperties),
    (takes("bookmarks", &["dataset"]), List::Bookmarks),
    (takes("holds", &["snapshot"]), List::Holds),
];

/// Arguments after they were checked.
struct Arguments {
    texts: Vec<String>,
    option: Option<bool>,
}

impl Arguments {
    fn text(&self, index: usize) -> String {
        self.texts.get(index).cloned().unwrap_or_default()
    }
}

/// Makes the change of a function; an error for arguments that do not fit together.
type MakeChange = fn(&Arguments) -> Result<ProgramChange, String>;

/// The changes.
const CHANGES: [(Signature, MakeChange); 9] = [
    (Signature { name: "destroy", texts: &["filesystem | snapshot"], option: Some("defer") }, destroy),
    (takes("clone", &["snapshot", "newdataset"]), |of| {
        Ok(ProgramChange::Clone { origin: of.text(0), name: of.text(1) })
    }),
    (takes("promote", &["clone"]), |of| Ok(ProgramChange::Promote { name: of.text(0) })),
    (takes("rollback", &["filesystem"]), |of| Ok(ProgramChange::Rollback { name: of.text(0) })),
    (takes("snapshot", &["filesystem@snapname | volume@snapname"]), |of| {
        Ok(ProgramChange::Snapshot { name: of.text(0) })
    }),
    (takes("rename_snapshot", &["filesystem | volume", "oldsnapname", "newsnapname"]), |of| {
        let snapshot = format!("{}@{}", of.text(0), of.text(1));
        Ok(ProgramChange::RenameSnapshot { snapshot, new_name: of.text(2) })
    }),
    (takes("inherit", &["dataset", "property"]), |of| {
        Ok(ProgramChange::Inherit { name: of.text(0), property: of.text(1) })
    }),
    (takes("bookmark", &["snapshot | bookmark", "bookmark"]), |of| {
        Ok(ProgramChange::Bookmark { source: of.text(0), name: of.text(1) })
    }),
    (takes("set_prop", &["dataset", "property", "value"]), |of| {
        Ok(ProgramChange::SetUser { name: of.text(0), property: of.text(1), value: of.text(2) })
    }),
];

fn destroy(of: &Arguments) -> Result<ProgramChange, String> {
    let name = of.text(0);
    match (name.contains('@'), of.option) {
        (true, defer) => Ok(ProgramChange::DestroySnapshot { name, defer: defer.unwrap_or(false) }),
        (false, None) => Ok(ProgramChange::Destroy { name }),
        (false, Some(_)) => Err(format!("'deferred' kwarg only supported for snapshots: {name}")),
    }
}

/// Defines `zfs` and the error numbers.
///
/// # Errors
/// Errors of allocating memory.
pub fn install(lua: &Lua, run: &Rc<Run>) -> Result<(), Error> {
    let globals = lua.globals();
    for (name, number) in errno::GLOBALS {
        globals.raw_set(name, number)?;
    }
    let zfs = lua.create_table()?;
    let list = lua.create_table()?;
    for (signature, kind) in LISTS {
        let run = run.clone();
        let function = move |lua: &Lua, given: MultiValue| {
            let name = arguments(lua, &signature, given)?.text(0);
            iterate(lua, &run, &signature, kind, name)
        };
        list.raw_set(signature.name, lua.create_function(function)?)?;
    }
    zfs.raw_set("list", list)?;
    zfs.raw_set("check", changes(lua, run, true)?)?;
    zfs.raw_set("sync", changes(lua, run, false)?)?;
    const EXISTS: Signature = takes("exists", &["dataset"]);
    const GET: Signature = takes("get_prop", &["dataset", "property"]);
    const DEBUG: Signature = takes("debug", &["debug string"]);
    let of_exists = run.clone();
    let exists = move |lua: &Lua, given: MultiValue| {
        let name = arguments(lua, &EXISTS, given)?.text(0);
        match of_exists.ask(Ask::Exists { name })? {
            Reply::Is(exists) => Ok(exists),
            Reply::Failed(Failure::OtherPool(name)) => {
                Err(fail(lua, format!("dataset '{name}' is not in the target pool")))
            }
            other => Err(unexpected(lua, &of_exists, &EXISTS, other)),
        }
    };
    zfs.raw_set(EXISTS.name, lua.create_function(exists)?)?;
    let of_get = run.clone();
    let get = move |lua: &Lua, given: MultiValue| {
        let given = arguments(lua, &GET, given)?;
        match of_get.ask(Ask::Property { name: given.text(0), property: given.text(1) })? {
            Reply::Property(None) => Ok(MultiValue::new()),
            Reply::Property(Some((word, source))) => {
                let source = source.map(|source| lua.create_string(source)).transpose()?;
                let source = source.map_or(Value::Nil, Value::String);
                Ok(MultiValue::from_vec(vec![value(lua, word)?, source]))
            }
            other => Err(unexpected(lua, &of_get, &GET, other)),
        }
    };
    zfs.raw_set(GET.name, lua.create_function(get)?)?;
    let of_debug = run.clone();
    let debug = move |lua: &Lua, given: MultiValue| {
        let text = arguments(lua, &DEBUG, given)?.text(0);
        of_debug.ask(Ask::Debug { text }).map(drop)
    };
    zfs.raw_set(DEBUG.name, lua.create_function(debug)?)?;
    globals.raw_set("zfs", zfs)
}

/// The functions of `zfs.check` or `zfs.sync`.
fn changes(lua: &Lua, run: &Rc<Run>, only_checks: bool) -> Result<Table, Error> {
    let functions = lua.create_table()?;
    for (signature, make) in CHANGES {
        let run = run.clone();
        let function = move |lua: &Lua, given: MultiValue| {
            let given = arguments(lua, &signature, given)?;
            let change = make(&given).map_err(|why| fail(lua, why))?;
            // A read-only program fails although the change might be refused: OpenZFS checks it first, and fails then.
            if !only_checks && !run.changes {
                return Err(fail(lua, READ_ONLY));
            }
            let unread = given.text(0);
            match run.ask(Ask::Change { change, only_checks })? {
                Reply::Number(number, _) if number == errno::EIO && !only_checks => {
                    Err(fail(lua, format!("I/O error while accessing dataset '{unread}'")))
                }
                Reply::Number(number, details) if details.is_empty() => {
                    Ok(MultiValue::from_vec(vec![Value::Integer(number.into())]))
                }
                Reply::Number(number, details) => {
                    let details = lua.create_sequence_from(details)?;
                    Ok(MultiValue::from_vec(vec![Value::Integer(number.into()), Value::Table(details)]))
                }
                other => Err(unexpected(lua, &run, &signature, other)),
            }
        };
        functions.raw_set(signature.name, lua.create_function(function)?)?;
    }
    Ok(functions)
}

/// The rows of a list, one at a call; of `system_properties` a table with all.
fn iterate(lua: &Lua, run: &Rc<Run>, signature: &Signature, list: List, name: String) -> Result<Value, Error> {
    let rows = match run.ask(Ask::List { list, name })? {
        Reply::Rows(rows) => rows,
        other => return Err(unexpected(lua, run, signature, other)),
    };
    if list == List::SystemProperties {
        let words = rows.into_iter().flatten().map(|word| value(lua, word)).collect::<Result<Vec<_>, _>>()?;
        return lua.create_sequence_from(words).map(Value::Table);
    }
    let rows = RefCell::new(rows.into_iter());
    let next = lua.create_function(move |lua, _: MultiValue| {
        let row = rows.borrow_mut().next();
        row.into_iter().flatten().map(|word| value(lua, word)).collect::<Result<MultiValue, _>>()
    })?;
    Ok(Value::Function(next))
}

fn value(lua: &Lua, word: Word) -> Result<Value, Error> {
    match word {
        Word::Text(text) => lua.create_string(text).map(Value::String),
        Word::Number(number) => Ok(Value::Integer(number)),
        Word::List(texts) => lua.create_sequence_from(texts).map(Value::Table),
    }
}

/// The error for an answer that ends the script.
fn unexpected(lua: &Lua, run: &Run, signature: &Signature, reply: Reply) -> Error {
    let argument = |why: String| bad_argument(lua, 1, signature.name, why);
    match reply {
        Reply::Failed(Failure::Missing(name)) => argument(format!("no such dataset '{name}'")),
        Reply::Failed(Failure::OtherPool(name)) => {
            argument(format!("dataset '{name}' is not in the target pool '{}'", run.pool))
        }
        Reply::Failed(Failure::Unreadable(name)) => fail(lua, format!("I/O error while accessing dataset '{name}'")),
        Reply::Failed(Failure::NoSnapshot(name)) => argument(format!("{name} is not a snapshot")),
        Reply::Failed(Failure::IsSnapshot(name)) => argument(format!("argument {name} cannot be a snapshot")),
        Reply::Failed(Failure::NoProperty(property)) => fail(lua, format!("'{property}' is not a valid property")),
        Reply::Failed(Failure::InvalidProperty { name, property }) => {
            fail(lua, format!("property '{property}' is not a valid property on dataset '{name}'"))
        }
        other => fail(lua, format!("unexpected answer {other:?}")),
    }
}

/// Checks the arguments of a call.
fn arguments(lua: &Lua, of: &Signature, given: MultiValue) -> Result<Arguments, Error> {
    let misused = |why: String| usage(lua, of, &why);
    let wrong = |index: usize, value: &Value| {
        misused(format!("arg {index} wrong type (is '{}', expected 'string')", type_name(value)))
    };
    let as_text = |index: usize, value: Option<&Value>| match value {
        None => Err(misused("too few arguments".into())),
        Some(Value::String(text)) => Ok(text.to_string_lossy()),
        Some(other) => Err(wrong(index, other)),
    };
    if let (1, Some(Value::Table(table))) = (given.len(), given.front()) {
        return of_table(lua, of, table);
    }
    let texts = (1..).zip(of.texts).map(|(index, _)| as_text(index, given.get(index - 1)));
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    match given.len() > of.texts.len() {
        true => Err(misused("too many positional arguments".into())),
        false => Ok(Arguments { texts, option: None }),
    }
}

/// Checks arguments that were given as one table.
fn of_table(lua: &Lua, of: &Signature, table: &Table) -> Result<Arguments, Error> {
    let misused = |why: String| usage(lua, of, &why);
    let mut texts = Vec::new();
    for (index, _) in (1i64..).zip(of.texts) {
        match table.raw_get::<Value>(index)? {
            Value::Nil => return Err(misused("too few arguments".into())),
            Value::String(text) => texts.push(text.to_string_lossy()),
            other => {
                let found = type_name(&other);
                return Err(misused(format!("arg {index} wrong type (is '{found}', expected 'string')")));
            }
        }
    }
    let option = match of.option.map(|name| table.raw_get::<Value>(name)).transpose()? {
        None | Some(Value::Nil) => None,
        Some(Value::Boolean(option)) => Some(option),
        Some(other) => {
            let name = of.option.unwrap_or_default();
            let found = type_name(&other);
            return Err(misused(format!("kwarg '{name}' wrong type (is '{found}', expected 'boolean')")));
        }
    };
    for pair in table.pairs::<Value, Value>() {
        match pair?.0 {
            Value::Integer(index) if (1..=of.texts.len() as i64).contains(&index) => {}
            Value::Integer(1..) => return Err(misused("too many positional arguments".into())),
            Value::String(name) if of.option.is_some_and(|option| name.as_bytes() == option.as_bytes()) => {}
            Value::String(name) => return Err(misused(format!("invalid kwarg '{}'", name.to_string_lossy()))),
            _ => return Err(misused("kwarg keys must be strings".into())),
        }
    }
    Ok(Arguments { texts, option })
}

/// The error of a call with wrong arguments, with the form of the call.
fn usage(lua: &Lua, of: &Signature, why: &str) -> Error {
    let texts = of.texts.iter().map(|name| format!("<{name}(string)>"));
    let option = of.option.map(|name| format!("{name}=(boolean)"));
    let form: Vec<String> = texts.chain(option).collect();
    let message = format!("{why}: {}{{{}}}", of.name, form.join(", "));
    fail(lua, if message.len() > MAX_USAGE { why.to_owned() } else { message })
}

//! The functions of Lua's table library whose time a script could make unbounded: those that believe a length.
//!
//! In Lua 5.4 they ask the metamethods of a table, which may claim any length. Here, as for elements in Lua 5.2, a table is what
//! it contains.
//!
//! Source: Lua 5.2 reference manual, §6.5.

use crate::run::{Run, bad_argument, fail, type_name};
use crate::strings::{integer, text};
use mlua::{Error, Function, Lua, MultiValue, Table, Value};
use std::rc::Rc;

/// Maximum number of elements of a range that `table.concat` is asked for.
const MAX_CONCATENATED: i64 = 1 << 27;

/// Replaces the functions in the table of the library. `less` compares two values as `<` does.
///
/// # Errors
/// Errors of allocating memory.
pub fn install(lua: &Lua, run: &Rc<Run>, library: &Table, less: Function) -> Result<(), Error> {
    library.raw_set("insert", lua.create_function(|lua, arguments: MultiValue| insert(lua, &arguments))?)?;
    library.raw_set("remove", lua.create_function(|lua, arguments: MultiValue| remove(lua, &arguments))?)?;
    let of_concat = run.clone();
    let concat = lua.create_function(move |lua, arguments: MultiValue| concat(lua, &of_concat, &arguments))?;
    library.raw_set("concat", concat)?;
    let run = run.clone();
    let sort = lua.create_function(move |lua, arguments: MultiValue| sort(lua, &run, &less, &arguments))?;
    library.raw_set("sort", sort)
}

/// The table that is the first argument.
fn table<'a>(lua: &Lua, arguments: &'a MultiValue, function: &str) -> Result<&'a Table, Error> {
    match arguments.front() {
        Some(Value::Table(table)) => Ok(table),
        other => {
            let found = other.map_or("no value", type_name);
            Err(bad_argument(lua, 1, function, format!("table expected, got {found}")))
        }
    }
}

fn length(table: &Table) -> i64 {
    i64::try_from(table.raw_len()).unwrap_or(i64::MAX)
}

/// `table.insert`.
fn insert(lua: &Lua, arguments: &MultiValue) -> Result<(), Error> {
    let table = table(lua, arguments, "insert")?;
    let end = length(table) + 1;
    match arguments.len() {
        2 => table.raw_set(end, arguments.get(1).cloned().unwrap_or(Value::Nil)),
        3 => {
            let at = integer(lua, arguments, 2, "insert")?.unwrap_or(0);
            if !(1..=end).contains(&at) {
                return Err(bad_argument(lua, 2, "insert", "position out of bounds"));
            }
            for index in (at..end).rev() {
                table.raw_set(index + 1, table.raw_get::<Value>(index)?)?;
            }
            table.raw_set(at, arguments.get(2).cloned().unwrap_or(Value::Nil))
        }
        _ => Err(fail(lua, "wrong number of arguments to 'insert'")),
    }
}

/// `table.remove`.
fn remove(lua: &Lua, arguments: &MultiValue) -> Result<Value, Error> {
    let table = table(lua, arguments, "remove")?;
    let size = length(table);
    let at = integer(lua, arguments, 2, "remove")?.unwrap_or(size);
    if at != size && !(1..=size + 1).contains(&at) {
        return Err(bad_argument(lua, 2, "remove", "position out of bounds"));
    }
    let removed = table.raw_get::<Value>(at)?;
    for index in at..size {
        table.raw_set(index, table.raw_get::<Value>(index + 1)?)?;
    }
    table.raw_set(at.max(size), Value::Nil)?;
    Ok(removed)
}

/// `table.concat`.
fn concat(lua: &Lua, run: &Rc<Run>, arguments: &MultiValue) -> Result<Value, Error> {
    let table = table(lua, arguments, "concat")?;
    let separator = match arguments.get(1) {
        None | Some(Value::Nil) => Vec::new(),
        Some(_) => text(lua, arguments, 2, "concat")?.as_bytes().to_vec(),
    };
    let first = integer(lua, arguments, 3, "concat")?.unwrap_or(1);
    let last = integer(lua, arguments, 4, "concat")?.unwrap_or_else(|| length(table));
    if last.saturating_sub(first) > MAX_CONCATENATED {
        return Err(fail(lua, "too many elements to concatenate"));
    }
    let mut out = Vec::new();
    for index in first..=last {
        if index > first {
            out.extend_from_slice(&separator);
        }
        let value = table.raw_get::<Value>(index)?;
        let element = match &value {
            Value::String(text) => Some(text.clone()),
            Value::Integer(_) | Value::Number(_) => lua.coerce_string(value.clone())?,
            _ => None,
        };
        let Some(element) = element else {
            let found = type_name(&value);
            return Err(fail(lua, format!("invalid value ({found}) at index {index} in table for 'concat'")));
        };
        out.extend_from_slice(&element.as_bytes());
        run.check_bytes(out.len())?;
    }
    lua.create_string(out).map(Value::String)
}

/// `table.sort`.
fn sort(lua: &Lua, run: &Rc<Run>, less: &Function, arguments: &MultiValue) -> Result<(), Error> {
    let table = table(lua, arguments, "sort")?;
    let order = match arguments.get(1) {
        None | Some(Value::Nil) => less,
        Some(Value::Function(order)) => order,
        Some(other) => {
            return Err(bad_argument(lua, 2, "sort", format!("function expected, got {}", type_name(other))));
        }
    };
    let mut values = (1..=length(table)).map(|index| table.raw_get(index)).collect::<Result<Vec<Value>, _>>()?;
    run.call_back(|| {
        let mut is_less = |a: &Value, b: &Value| order.call::<bool>((a.clone(), b.clone()));
        quicksort(&mut values, &mut is_less)?
            .then_some(())
            .ok_or_else(|| fail(lua, "invalid order function for sorting"))
    })?;
    for (index, value) in (1i64..).zip(values) {
        table.raw_set(index, value)?;
    }
    Ok(())
}

/// Sorts by quicksort with the median of three as pivot. Returns false if the order contradicts itself.
fn quicksort<T: Clone, E>(values: &mut [T], is_less: &mut impl FnMut(&T, &T) -> Result<bool, E>) -> Result<bool, E> {
    let mut parts = vec![(0, values.len())];
    while let Some((start, end)) = parts.pop() {
        let Some(part) = values.get_mut(start..end) else { continue };
        let last = part.len().saturating_sub(1);
        let middle = last / 2;
        for (low, high) in [(0, last), (0, middle), (middle, last)] {
            if let (Some(a), Some(b)) = (part.get(low), part.get(high))
                && low < high
                && is_less(b, a)?
            {
                part.swap(low, high);
            }
        }
        if part.len() <= 3 {
            continue;
        }
        let Some(split) = partition(part, middle, is_less)? else { return Ok(false) };
        // The shorter part is sorted first, so that few parts wait.
        let halves = [(start, start + split), (start + split + 1, end)];
        let is_left_shorter = split < part.len() - split;
        parts.extend(if is_left_shorter { [halves[1], halves[0]] } else { halves });
    }
    Ok(true)
}

/// Moves what is less than the pivot before it and the others behind it; returns where the pivot is then, and `None` if the order
/// contradicts itself. The first value is not greater than the pivot, the last one not less.
fn partition<T: Clone, E>(
    part: &mut [T],
    middle: usize,
    is_less: &mut impl FnMut(&T, &T) -> Result<bool, E>,
) -> Result<Option<usize>, E> {
    let last = part.len() - 1;
    let Some(pivot) = part.get(middle).cloned() else { return Ok(None) };
    part.swap(middle, last - 1);
    let mut low = 0;
    let mut high = last - 1;
    loop {
        low += 1;
        while part.get(low).map(|value| is_less(value, &pivot)).transpose()? == Some(true) {
            if low == last - 1 {
                return Ok(None);
            }
            low += 1;
        }
        high -= 1;
        while part.get(high).map(|value| is_less(&pivot, value)).transpose()? == Some(true) {
            if high < low || high == 0 {
                return Ok(None);
            }
            high -= 1;
        }
        if high < low {
            part.swap(last - 1, low);
            return Ok(Some(low));
        }
        part.swap(low, high);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sorting_sorts(mut values in proptest::collection::vec(0..20i32, 0..200)) {
            let mut expected = values.clone();
            expected.sort_unstable();
            prop_assert_eq!(quicksort(&mut values, &mut |a, b| Ok::<_, ()>(a < b)), Ok(true));
            prop_assert_eq!(values, expected);
        }

        #[test]
        fn any_order_function_ends(len in 0..50usize, answers in proptest::collection::vec(any::<bool>(), 1..30)) {
            let mut values: Vec<usize> = (0..len).collect();
            let mut calls = 0;
            let mut order = |_: &usize, _: &usize| {
                calls += 1;
                Ok::<_, ()>(answers[calls % answers.len()])
            };
            prop_assert!(quicksort(&mut values, &mut order).is_ok());
            values.sort_unstable();
            prop_assert!(values.into_iter().eq(0..len), "no value is lost");
        }
    }

    #[test]
    fn an_order_that_is_always_true_is_invalid() {
        for len in 4..7 {
            assert_eq!(quicksort(&mut vec![0; len], &mut |_, _| Ok::<_, ()>(true)), Ok(false));
        }
    }
}

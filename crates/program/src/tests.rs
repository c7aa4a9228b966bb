//! Scripts on a pool that knows one dataset.

use crate::asked::{Ask, Failure, Reply, Word};
use crate::run::{Limits, Run};
use crate::script::Script;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use weir_admin::{Bytes, LuaProgram, ProgramEnd, ProgramFailure, ProgramFailureKind, ProgramValue};

const MIB: u64 = 1 << 20;

/// A pool with the file system `p/a`: changes of others are refused, properties are numbers.
fn answer(ask: Ask) -> Reply {
    let exists = |name: &str| name == "p" || name == "p/a";
    match ask {
        Ask::Exists { name } if name.starts_with('p') => Reply::Is(exists(&name)),
        Ask::Exists { name } => Reply::Failed(Failure::OtherPool(name)),
        Ask::Property { name, property } if exists(&name) => match property.as_str() {
            "used" => Reply::Property(Some((Word::Number(-1), None))),
            "a:b" => Reply::Property(Some((Word::Text("c".into()), Some("p".into())))),
            "clones" => Reply::Property(Some((Word::List(vec!["p/x".into()]), None))),
            "origin" => Reply::Property(None),
            _ => Reply::Failed(Failure::NoProperty(property)),
        },
        Ask::Property { name, .. } => Reply::Failed(Failure::Missing(name)),
        Ask::List { name, .. } if exists(&name) => Reply::Rows(vec![
            vec![Word::Text("x".into()), Word::Number(1)],
            vec![Word::Text("y".into()), Word::Number(2)],
        ]),
        Ask::List { name, .. } => Reply::Failed(Failure::NoSnapshot(name)),
        Ask::Change { change: weir_engine::ProgramChange::Promote { .. }, .. } => Reply::Number(17, vec!["s".into()]),
        Ask::Change { only_checks, .. } => Reply::Number(if only_checks { 0 } else { 2 }, Vec::new()),
        Ask::Debug { .. } => Reply::Done,
    }
}

fn run_within(script: &str, arguments: &[&str], instructions: u64, memory_bytes: u64, changes: bool) -> ProgramEnd {
    let machine = weir_linux::machine().unwrap();
    let canceled = Arc::new(AtomicBool::new(false));
    let limits = Limits { instructions, memory_bytes, time: std::time::Duration::from_secs(2), canceled };
    let arguments: Vec<Bytes> = arguments.iter().map(|word| Bytes::from(*word)).collect();
    let program = LuaProgram {
        script: script.into(),
        arguments: arguments.clone(),
        instruction_limit: instructions,
        memory_limit_bytes: memory_bytes,
        changes,
    };
    let clock = machine.clock.clone();
    // As in the program, the interpreter has a thread with a large stack.
    let thread = std::thread::Builder::new().stack_size(crate::STACK_BYTES).spawn(move || {
        let run = Rc::new(Run::new("p", changes, &limits, clock, |ask| Some(answer(ask))));
        Script::compile(&program, run).map_or_else(|end| end, |script| script.execute(&arguments))
    });
    thread.unwrap().join().unwrap()
}

fn run(script: &str) -> ProgramEnd {
    run_within(script, &[], 10_000_000, 10 * MIB, true)
}

/// Runs a script whose assertions must hold.
fn holds(script: &str) {
    assert_eq!(run(script), ProgramEnd::Returned(None), "{script}");
}

fn failure(script: &str) -> ProgramFailure {
    match run(script) {
        ProgramEnd::Failed(failure) => failure,
        end => panic!("{script} ended with {end:?}"),
    }
}

/// The message of a script that fails.
fn message(script: &str) -> String {
    let message = failure(script).message.unwrap_or_else(|| panic!("{script} has no message"));
    String::from_utf8(message.0).unwrap()
}

fn text(text: &str) -> ProgramValue {
    ProgramValue::Text(text.into())
}

#[test]
fn numbers_are_integers() {
    holds("assert(7 / 2 == 3 and -7 / 2 == -3 and 7 % -2 == 1 and -7 % 2 == -1)");
    holds("assert(2 ^ 10 == 1024 and -2 ^ 2 == -4 and 2 ^ -1 == 0 and 2 ^ 3 ^ 2 == 512 and 2 ^ 64 == 0)");
    holds("assert(010 == 8 and 0x10 == 16 and 18446744073709551615 == -1 and 9223372036854775807 + 1 < 0)");
    holds("assert('10' / 3 == 3 and '0x10' ^ '2' == 256 and 10 / 2 * 3 == 15 and 2 * 7 / 3 == 4)");
    holds(
        "assert('10' + 1 == 11 and tostring('2' * '3') == '6' and -'4' == -4 and '010' - 1 == 7 and '3' .. 1 == '31')",
    );
    assert!(message("return 'x' + 1").contains(":1: attempt to perform arithmetic on a string value"));
    holds("assert(tonumber('012') == 10 and tonumber('1.5') == nil and tonumber(' -0xfF ') == -255)");
    holds("assert(tonumber('zz', 36) == 1295 and tonumber('9', 8) == nil and tostring(2 ^ 53) == '9007199254740992')");
    assert!(message("x = 1\nreturn x / 0").starts_with("[string \"channel program\"]:2: attempt to divide by zero\n"));
    assert!(message("return {} / 2").contains(":1: attempt to perform arithmetic on a table value"));
    assert!(message("return 1.5").contains("malformed number near '1.5'"));
    holds("_ENV = setmetatable({}, {__index = _G}) string = nil assert(9 / 2 == 4 and 9 % 2 == 1 and 3 ^ 2 == 9)");
}

#[test]
fn metamethods_of_arithmetic_get_their_operands() {
    holds(
        "local t = {} t.__div = function(a, b) return 'd' .. tostring(b) end t.__mod = function() return 'm' end
         t.__pow = function(a, b) return 'p' .. tostring(b) end
         local a = setmetatable({}, t)
         assert(a / 3 == 'd3' and a % 2 == 'm' and a ^ 4 == 'p4' and 4 ^ a == 'p' .. tostring(a))",
    );
}

#[test]
fn a_traceback_shows_the_frames_of_the_script() {
    let expected = "[string \"channel program\"]:1: attempt to divide by zero\nstack traceback:\n\t\
                    [string \"channel program\"]:1: in main chunk";
    assert_eq!(message("return 1 / 0"), expected);
    let expected = "no\nstack traceback:\n\t[C]: in function 'error'\n\t\
                    [string \"channel program\"]:1: in function 'f'\n\t[string \"channel program\"]:2: in main chunk";
    assert_eq!(message("function f() error('no', 0) end\nf() return"), expected);
    assert_eq!(message("error({})").lines().next(), Some("stack traceback:"));
    let deep = message("function f(n) if n == 0 then error('x') end f(n - 1) return end f(100)");
    assert_eq!(deep.matches("in function 'f'").count(), 20, "{deep}");
    assert!(deep.contains("\n\t...\n") && deep.ends_with("in main chunk"), "{deep}");
}

#[test]
fn a_nested_library_function_ends() {
    let text = message("function f(s)\nreturn string.gsub(s, '.', f)\nend\nreturn f('foo')");
    assert!(text.starts_with("C stack overflow\nstack traceback:\n"), "{text}");
}

#[test]
fn results_are_values_as_in_an_nvlist() {
    let end = run("return {[2] = 'b', [1] = true, x = {}, [true] = -5}");
    let pairs = vec![
        ("1".into(), ProgramValue::Boolean(true)),
        ("2".into(), text("b")),
        ("true".into(), ProgramValue::Number(-5)),
        ("x".into(), ProgramValue::Table(Vec::new())),
    ];
    assert_eq!(end, ProgramEnd::Returned(Some(ProgramValue::Table(pairs))));
    assert_eq!(run("return nil"), ProgramEnd::Returned(Some(ProgramValue::Nil)));
    assert_eq!(run("return 'a\\0b'"), ProgramEnd::Returned(Some(text("a"))));
    for (script, why) in [
        ("return 1, 2", "Multiple return values not supported"),
        ("return {[1] = 1, ['1'] = 2}", "Collision of key '1' in table"),
        ("return assert", "Invalid value type 'function' for key 'return'"),
        ("return {[{}] = 1}", "Invalid key type 'table' in table"),
        ("a = {} a.a = a return a", "Maximum table depth (20) exceeded for table"),
    ] {
        assert_eq!(message(script), why);
    }
}

#[test]
fn only_the_documented_functions_are_there() {
    holds(
        "for _, name in ipairs{'dofile', 'load', 'loadfile', 'loadstring', 'pcall', 'print', 'xpcall', 'require', 'package',
                               'io', 'os', 'debug', 'math', 'utf8', 'bit32', 'warn'} do assert(_G[name] == nil, name) end
         assert(string.dump == nil and string.pack == nil and table.move == nil and coroutine.isyieldable == nil)
         assert(_VERSION == 'Lua 5.2' and getmetatable(4) == nil and EEXIST == 17 and ENAMETOOLONG == 36)",
    );
    assert!(message("setmetatable({}, {__gc = function() end})").contains("finalizers ('__gc') are not supported"));
    assert!(message("return 1 & 2").contains("unexpected symbol near '&'"));
}

#[test]
fn the_libraries_work() {
    holds("assert(string.find('hello world', 'o w') == 5 and string.find('a.b', '.', 1, true) == 2)");
    holds("local a, b = string.match('k=v', '(%w+)=(%w+)') assert(a == 'k' and b == 'v')");
    holds("assert(string.gsub('abc', '%w', '%0%0') == 'aabbcc' and string.gsub('abc', 'b', {b = 'x'}) == 'axc')");
    holds("local n = 0 for w in string.gmatch('one two', '%a+') do n = n + #w end assert(n == 6)");
    holds("assert(string.rep('ab', 3, '-') == 'ab-ab-ab' and string.rep('', 10) == '' and ('x'):rep(0) == '')");
    holds("assert(string.rep('', 9223372036854775807) == '')");
    holds("assert(string.find('', '') == 1 and string.find('', '', 2) == nil and string.find('abc', 'c', -1) == 3)");
    holds("local t = {3, 1, 2} table.sort(t) assert(table.concat(t, ',') == '1,2,3')");
    holds("local t = {3, 1, 2} table.sort(t, function(a, b) return a > b end) assert(table.concat(t) == '321')");
    holds("local t = {1, 3} table.insert(t, 2, 2) assert(table.remove(t, 1) == 1 and #t == 2 and t[1] == 2)");
    holds("assert(table.remove({}) == nil and table.unpack({1, 2}) == 1 and table.pack(nil, nil).n == 2)");
    assert!(message("table.sort({1, 2, 3, 4}, function() return true end)").contains("invalid order function"));
    let expected = "[string \"channel program\"]:2: invalid value (table) at index 2 in table for 'concat'\n";
    assert!(message("x = 1\ntable.concat({1, {}})").starts_with(expected));
}

#[test]
fn errors_can_be_caught_in_coroutines_as_texts() {
    holds(
        "local co = coroutine.create(function() zfs.get_prop('p/none', 'used') end)
         local ok, why = coroutine.resume(co)
         assert(not ok and type(why) == 'string', type(why))
         assert(why:find(\"bad argument #1 to 'get_prop' (no such dataset 'p/none')\", 1, true), why)
         local t = {} local ok, why = coroutine.resume(coroutine.create(function() error(t) end))
         assert(not ok and why == t)",
    );
    holds(
        "local f = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) return b end) assert(f(1) == 2 and f(7) == 7)",
    );
    assert!(message("coroutine.wrap(function() error('inside') end)()").contains("inside"));
}

#[test]
fn the_library_asks_the_pool() {
    holds("assert(zfs.exists('p/a') and not zfs.exists('p/none')) zfs.debug('x')");
    holds("local v, s = zfs.get_prop('p/a', 'a:b') assert(v == 'c' and s == 'p')");
    holds("assert(zfs.get_prop('p/a', 'used') == -1 and zfs.get_prop('p/a', 'origin') == nil)");
    holds("assert(zfs.get_prop{'p/a', 'clones'}[1] == 'p/x')");
    holds("local n = 0 for tag, time in zfs.list.holds('p/a') do n = n + time end assert(n == 3)");
    holds("assert(zfs.list.system_properties('p/a')[1] == 'x')");
    holds("assert(zfs.sync.snapshot('p/a@s') == ENOENT and zfs.check.snapshot('p/a@s') == 0)");
    holds("local e, d = zfs.sync.promote('p/a') assert(e == EEXIST and #d == 1 and d[1] == 's')");
    holds("assert(zfs.sync.destroy{'p/a@s', defer = true} == ENOENT)");
    assert!(message("zfs.exists('rpool')").contains("dataset 'rpool' is not in the target pool"));
    assert!(message("zfs.get_prop('p/a', 'nothing')").contains("'nothing' is not a valid property"));
    assert!(message("zfs.list.clones('p/x')").contains("p/x is not a snapshot"));
    assert!(message("zfs.sync.destroy{'p/a', defer = true}").contains("'deferred' kwarg only supported for snapshots"));
    let end = run_within("return zfs.sync.snapshot('p/a@s')", &[], 1000, MIB, false);
    let ProgramEnd::Failed(ProgramFailure { message: Some(message), .. }) = end else { panic!("{end:?}") };
    assert!(String::from_utf8(message.0).unwrap().contains("requires passing sync=TRUE"));
}

#[test]
fn wrong_arguments_are_errors_with_the_form_of_the_call() {
    let form = "destroy{<filesystem | snapshot(string)>, defer=(boolean)}";
    for (call, why) in [
        ("('a', 'b')", "too many positional arguments"),
        ("(1)", "arg 1 wrong type (is 'number', expected 'string')"),
        ("()", "too few arguments"),
        ("{'a', bar = true}", "invalid kwarg 'bar'"),
        ("{'a', defer = 1}", "kwarg 'defer' wrong type (is 'number', expected 'boolean')"),
        ("{'a', 'b', defer = true}", "too many positional arguments"),
        ("{defer = true}", "too few arguments"),
        ("{'a', [{}] = 1}", "kwarg keys must be strings"),
    ] {
        let found = message(&format!("zfs.sync.destroy{call}"));
        assert!(found.contains(&format!("{why}: {form}")), "{call}: {found}");
    }
}

#[test]
fn arguments_are_in_argv() {
    let script = "local args = ... local argv = args['argv'] return #argv .. argv[1] .. argv[2]";
    assert_eq!(run_within(script, &["x", "y"], 1000, MIB, true), ProgramEnd::Returned(Some(text("2xy"))));
}

#[test]
fn limits_end_a_script() {
    for limit in [1000, 10_000, 1_000_000] {
        let end = run_within("while true do end", &[], limit, MIB, true);
        let ProgramEnd::Failed(ProgramFailure { kind, message: Some(message), instructions: Some(count) }) = end else {
            panic!("{end:?}");
        };
        assert_eq!((kind, count), (ProgramFailureKind::TimedOut, limit + 100));
        let expected = "Channel program timed out.\nstack traceback:\n\t[string \"channel program\"]:1: in main chunk";
        assert_eq!(String::from_utf8(message.0).unwrap(), expected);
    }
    // No coroutine catches it for good.
    let forever = "while true do coroutine.resume(coroutine.create(function() while true do end end)) end";
    assert_eq!(failure(forever).kind, ProgramFailureKind::TimedOut);
    let memory = "a = {} i = 0 while true do i = i + 1 a[i] = 'entry ' .. i end";
    let out_of_memory = ProgramFailure { kind: ProgramFailureKind::Memory, message: None, instructions: None };
    assert_eq!(failure(memory), out_of_memory);
    for (script, memory_bytes) in [("return 'a' .. 'b'", 1), (memory, 100_000)] {
        let end = run_within(script, &[], 100_000_000, memory_bytes, true);
        assert_eq!(end, ProgramEnd::Failed(out_of_memory.clone()), "{memory_bytes}");
    }
    let end = run_within("s = 'teststring' s = s .. s .. s return s", &[], 1000, 100_000, true);
    assert!(matches!(end, ProgramEnd::Returned(Some(_))), "{end:?}");
    assert_eq!(failure("function f(x) if x == 0 then return 0 end return f(x - 1) + 1 end f(10000000)"), out_of_memory);
    let long = "return string.rep('x', 1000)";
    assert!(matches!(run_within(long, &[], 1000, 200_000, true), ProgramEnd::Returned(Some(_))));
}

#[test]
fn hostile_scripts_end() {
    for script in [
        "string.rep('x', 1000000000000)",
        "local s = 'x' while true do s = s .. s end",
        "string.rep('a', 9000000):gsub('', string.rep('b', 1000000))",
        "string.find(string.rep('a', 40), string.rep('a?', 40) .. string.rep('a', 40) .. 'b')",
        "while true do string.find(string.rep('a', 100000), string.rep('a', 50000) .. 'b', 1, true) end",
        "local f = setmetatable({}, {__len = function() return 9007199254740992 end}) table.insert(f, 1, 1) table.sort(f)
         while true do table.remove(f) end",
        "table.concat(setmetatable({}, {__index = getmetatable, __metatable = ''}), '', 1, 9007199254740992)",
        "table.unpack({}, 1, 100000000)",
        "local t = setmetatable({}, {}) getmetatable(t).__index = t return t.x",
        "local function f() return f() end f()",
        "local function f() f() end f()",
        "error(setmetatable({}, {__tostring = function() while true do end end}))",
        "coroutine.wrap(function() coroutine.wrap(function() string.gsub('a', 'a', coroutine.yield) end)() end)()",
        "local co co = coroutine.create(function() coroutine.resume(co) error(co) end) coroutine.resume(co) error(co)",
        "local function f() return coroutine.wrap(f)() end f()",
        "string.format('%99999d', 1)",
        "return string.format(string.rep('%s', 100000))",
        "for i = 1, 1000 do _G['x' .. i] = string.rep('y', 20000) end",
        "local t = {} for i = 1, 1000000 do t[i] = i end table.sort(t, function() return true end)",
        "zfs.list.children{}", "zfs = nil zfs.exists('p')", "\u{1}\u{2}", "goto a", "x = [==[", "x = '",
    ] {
        let end = run_within(script, &[], 300_000, 10 * MIB, true);
        assert!(matches!(end, ProgramEnd::Failed(_)), "{script} ended with {end:?}");
    }
    let nested = format!("return {}1{}", "(".repeat(1000), ")".repeat(1000));
    assert!(message(&nested).contains("too many C levels"));
}

#[test]
fn copies_of_all_memory_end_by_time_or_instructions() {
    // Each turn copies a million values, which the hook of instructions does not interrupt.
    let script = "local t = {} for i = 1, 200000 do t[i] = i end
                  local function f(...) return select('#', ...) end
                  while true do f(table.unpack(t)) end";
    let end = run_within(script, &[], 1_000_000, 100 * MIB, true);
    assert!(matches!(end, ProgramEnd::Failed(ProgramFailure { kind: ProgramFailureKind::TimedOut, .. })), "{end:?}");
}

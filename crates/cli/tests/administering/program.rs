//! Channel programs, by the process that has the pool open and without one.

use super::Lab;
use std::process::Output;

impl Lab {
    /// Runs a script with `zfs program`.
    fn program(&self, options: &str, script: &str, arguments: &str) -> Output {
        std::fs::write(self.path("script.lua"), script).unwrap();
        self.run(&format!("zfs program {options} p script.lua {arguments}"))
    }

    /// The output of a script that comes to its end.
    fn programmed(&self, script: &str) -> String {
        let out = self.program("", script, "");
        assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn programs(&self) {
        self.ok("zfs create p/a");
        self.ok("zfs create p/b");
        self.ok("zfs create p/b/c");
        let expected =
            "Channel program fully executed and produced output:\n    return:\n        1: 'p/a'\n        2: 'p/b'\n";
        let children = "local t = {} for child in zfs.list.children('p') do table.insert(t, child) end return t";
        assert_eq!(self.programmed(children), expected);
        // All changes of a program are in one txg, and its reads see them.
        self.programmed(
            "local function all(name)
               assert(zfs.sync.snapshot(name .. '@s') == 0)
               assert(zfs.exists(name .. '@s'))
               for child in zfs.list.children(name) do all(child) end
             end
             all('p')
             assert(zfs.sync.snapshot('p/a@s') == EEXIST and zfs.sync.snapshot('p/a@t') == EAGAIN)
             assert(zfs.sync.set_prop('p/a', 'a:b', 'c') == 0 and zfs.get_prop('p/a', 'a:b') == 'c')
             assert(zfs.sync.bookmark('p/a@s', 'p/a#m') == 0)
             assert(zfs.sync.rename_snapshot('p/b/c', 's', 'r') == 0)",
        );
        let txgs = self.ok("zfs get -Hpo value createtxg p@s p/a@s p/b@s p/b/c@r p/a#m");
        let txgs: Vec<&str> = txgs.lines().collect();
        assert!(txgs.len() == 5 && txgs.iter().all(|txg| *txg == txgs[0]), "{txgs:?}");
        // A program that fails leaves what it had changed; `-n` changes nothing.
        let out = self.program("", "zfs.sync.destroy('p/a#m') zfs.sync.inherit('p/a', 'a:b')\nerror('enough')", "");
        let text = String::from_utf8(out.stderr).unwrap();
        let expected = "Channel program execution failed:\n[string \"channel program\"]:2: enough\nstack traceback:\n";
        assert!(out.status.code() == Some(1) && text.starts_with(expected), "{text}");
        assert_eq!(self.ok("zfs get -Hpo value a:b p/a"), "-\n");
        let out = self.program("-n", "assert(zfs.check.destroy('p/b/c@r') == 0) zfs.sync.destroy('p/b/c@r')", "");
        assert!(String::from_utf8(out.stderr).unwrap().contains("requires passing sync=TRUE"));
        self.ok("zfs list p/b/c@r");
    }

    fn more_programs(&self) {
        // Snapshots made and destroyed, rollbacks and promotions, in one txg.
        self.programmed(
            "assert(zfs.sync.snapshot('p/b/c@x') == 0 and zfs.sync.destroy('p/b/c@x') == 0)
             assert(zfs.sync.rollback('p/b/c') == 0 and zfs.sync.rollback('p/b/c') == 0)
             assert(zfs.sync.clone('p/b/c@r', 'p/d') == 0 and zfs.list.clones('p/b/c@r')() == 'p/d')
             assert(zfs.sync.destroy('p/b/c@r') == EEXIST and zfs.sync.destroy('p/b') == EEXIST)
             assert(zfs.sync.promote('p/d') == 0 and zfs.get_prop('p/b/c', 'origin') == 'p/d@r')
             assert(zfs.sync.promote('p/d') == EINVAL and zfs.sync.promote('q/d') == EXDEV)
             assert(zfs.sync.destroy('p/b/c') == 0 and zfs.sync.destroy('p/d@r') == 0 and not zfs.exists('p/b/c'))",
        );
        assert_eq!(self.ok("zfs list -Hro name p"), "p\np/a\np/b\np/d\n");
        let conflict = "assert(zfs.sync.clone('p/a@s', 'p/e') == 0)";
        self.programmed(conflict);
        self.ok("zfs snapshot p/e@s");
        self.programmed("local e, d = zfs.check.promote('p/e') assert(e == EEXIST and #d == 1 and d[1] == 's')");
        // A script from standard input, arguments, JSON.
        let out = self.program("-j", "local a = ... return {a.argv[1], x = zfs.get_prop('p/a', 'type')}", "one");
        assert_eq!(String::from_utf8(out.stdout).unwrap(), "{\"return\":{\"1\":\"one\",\"x\":\"filesystem\"}}\n");
        for (options, script, expected) in [
            ("-t 1000", "while true do end", "\n1100 Lua instructions\n"),
            ("-m 200000000", "", "Invalid instruction or memory limit."),
            ("-m 9223372036854775808", "", "Return value too large."),
            ("-m 1", "return 'a' .. 'b'", "Memory limit exhausted."),
            ("", "zfs.exists('q')", "not in the target pool"),
        ] {
            let out = self.program(options, script, "");
            let text = String::from_utf8(out.stderr).unwrap();
            assert!(out.status.code() == Some(1) && text.contains(expected), "{options}: {text}");
        }
        assert!(self.ok("zpool history p").contains("zfs program p script.lua"));
        let destroy = "local function destroy(name)
                         for child in zfs.list.children(name) do destroy(child) end
                         for snapshot in zfs.list.snapshots(name) do assert(zfs.sync.destroy(snapshot) == 0) end
                         if name ~= 'p' then assert(zfs.sync.destroy(name) == 0) end
                       end
                       assert(zfs.sync.destroy('p/e') == EBUSY and zfs.sync.destroy('p/e@s') == 0)
                       assert(zfs.sync.destroy('p/e') == 0)
                       destroy('p')";
        self.programmed(destroy);
        assert_eq!(self.ok("zfs list -Hro name -t all p"), "p\n");
    }
}

#[test]
fn programs_run_where_the_pool_is_open() {
    let lab = Lab::new();
    let mut server = lab.serve();
    lab.programs();
    lab.more_programs();
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    lab.check();
}

#[test]
fn programs_run_on_a_pool_that_no_process_has_open() {
    let lab = Lab::new();
    lab.programs();
    lab.more_programs();
    lab.check();
}

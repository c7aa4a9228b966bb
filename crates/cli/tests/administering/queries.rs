//! Queries print the same whether the pool is open in another process, which answers with rows, or is read by the command itself.

use super::Lab;
use std::os::unix::net::UnixStream;
use std::process::Output;

/// Queries about the pool `p` of [`lab`], those that fail among them.
const LINES: &[&str] = &[
    // In a process that has the pool open, these begin a txg: they are the first.
    "zpool history",
    "zpool history -l p",
    "zpool history -il none p none2",
    "zpool history -x p",
    "zpool list",
    "zpool list -v p",
    "zpool list -gHpv -o name,size,alloc,free,cap,frag,health,expandsz,org:tag none p none2",
    "zpool list -jv --json-int p",
    "zpool list -Pv -R /other p",
    "zpool list -vL -o all",
    "zpool list -H none",
    "zpool list p 0.01 2",
    "zpool status",
    "zpool status -v none p none2",
    "zpool status -sPgLeitD p",
    "zpool status -x",
    "zpool status -x p",
    "zpool status -j",
    "zpool status -jpD --json-int --json-flat-vdevs --json-pool-key-guid p",
    "zpool status p 0.01 2",
    "zpool status none",
    "zpool status --json-flat-vdevs p",
    "zpool list -o what",
    "zpool get all",
    "zpool get -Hp -o name,property,value size,alloc,org:tag,feature@async_destroy p",
    "zpool get -j --json-int --json-pool-key-guid health,guid,comment p",
    "zpool get -R /other altroot none p none2",
    "zpool get size p p",
    "zpool get name,state,parity,path,numchildren p all-vdevs root",
    "zpool get -Hp comment,guid,org:tag p d0 mirror-0",
    "zpool get -j state p mirror-0 none d1",
    "zpool get guid none d1",
    "zpool get what p",
    "zpool get state,what p d1",
    "zfs diff p/a@1 p/a@2",
    "zfs diff -FHth p/a@1 @2",
    "zfs diff p/a@2 p/a@1",
    "zfs diff p/a@none p/a",
    "zfs diff p/a@1 p/clone@none",
    "zfs diff none@1",
    "zfs diff p/a",
    "zfs diff p/a@1 q/a@2",
    "zfs holds p/a@1",
    "zfs holds -H p/a@1 p@1",
    "zfs holds -rHp p@1",
    "zfs holds -r p/a",
    "zfs holds p/a@2",
    "zfs holds p/a@1 p/a@none",
    "zfs holds none@1",
    "zfs holds",
    "zfs get all p",
    "zfs get -r -s local,inherited all p",
    "zfs get -Hp -o name,value used,userused@0,groupquota@7 p/a p/none p/a@1",
    "zfs get -j -t all -d 1 type,creation,origin p",
    "zfs get userused@0,projectquota@3",
    "zfs get written@1,user:tag p/a",
    "zfs get used p/a#mark p/a#none",
    "zfs list",
    "zfs list -t all -o name,used,refer,creation",
    "zfs list -r -t snapshot,bookmark p/a",
    "zfs list -Hp -S used -s name -o name,used p/a p",
    "zfs list -j --json-int -r p",
    "zfs list p/none p@none none p",
    "zfs list --altroot /other -o name,mountpoint",
    "zfs userspace p",
    "zfs userspace -n -o type,name,used,quota,objused,objquota -s used p/a",
    "zfs userspace -Hp -t smbuser,posixgroup p",
    "zfs groupspace -Hnp -S quota -s name p/a",
    "zfs groupspace -Hnp p/a@1",
    "zfs projectspace p/a",
    "zfs projectspace -s size p/a",
    "zfs groupspace -s size p/a",
    "zfs userspace p/none",
    "zfs userspace p/a@none",
    "zfs userspace p/a/volume",
    "zfs userspace none",
    "zfs userspace -o what p",
];

fn lab() -> Lab {
    let lab = Lab::new();
    for line in [
        "zfs create -o atime=off -o user:tag=text p/a",
        "zfs create -s -V 16M p/a/volume",
        "zfs set groupquota@7=8M p/a",
        "zfs snapshot -r p@1",
        "zfs snapshot p/a@2",
        "zfs bookmark p/a@1 p/a#mark",
        "zfs clone p/a@1 p/clone",
        "zfs hold -r first p@1",
        "zfs hold second p/a@1",
    ] {
        lab.ok(line);
    }
    lab
}

/// The lines, and what they print.
fn printed(lab: &Lab) -> Vec<(&'static str, Output)> {
    LINES.iter().map(|line| (*line, lab.run(line))).collect()
}

#[test]
fn a_served_pool_answers_as_one_that_no_process_has_open() {
    let lab = lab();
    let mut server = lab.serve();
    let served = printed(&lab);
    // Without a last txg, both are of the same state of the pool.
    server.kill().unwrap();
    server.wait().unwrap();
    let closed = printed(&lab);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for ((line, served), (_, closed)) in served.into_iter().zip(closed) {
        assert_eq!(closed.status.code(), served.status.code(), "{line}");
        assert_eq!(text(&closed.stdout), text(&served.stdout), "{line}");
        assert_eq!(text(&closed.stderr), text(&served.stderr), "{line}");
    }
}

#[test]
fn differences_of_files_are_the_same_in_a_mounted_pool() {
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("skipped: no /dev/fuse");
        return;
    }
    let lab = lab();
    let top = lab.path("mnt");
    std::fs::create_dir(&top).unwrap();
    let mut mount = lab.start(&format!("mount p {}", top.display()));
    let path = |name: &str| top.join("a").join(name);
    for name in ["kept", "changed", "removed", "moved", "linked"] {
        std::fs::write(path(name), name).unwrap();
    }
    lab.ok("zfs snapshot p/a@3");
    std::fs::write(path("changed"), "otherwise").unwrap();
    std::fs::remove_file(path("removed")).unwrap();
    std::fs::rename(path("moved"), path("moved to here")).unwrap();
    std::fs::hard_link(path("linked"), path("linked again")).unwrap();
    std::fs::create_dir(path("new\\directory")).unwrap();
    let lines = ["zfs diff p/a@3", "zfs diff -FHth p/a@3 p/a@4", "zfs diff -F p/a@1 p/a", "zfs diff -h p/a@2 p/a@4"];
    // The file system as it is now is a temporary snapshot, which goes before the process is ended.
    let of_file_system = lab.run(lines[0]);
    lab.ok("zfs snapshot p/a@4");
    let open = lines.map(|line| lab.run(line));
    assert_eq!(open[0], of_file_system);
    lab.ok("zpool export p");
    assert!(mount.wait().unwrap().success());
    let closed = lines.map(|line| lab.run(line));
    assert_eq!(open, closed);
    let text = String::from_utf8_lossy(&open[0].stdout);
    for line in ["M\t/p/a/changed\n", "-\t/p/a/removed\n", "R\t/p/a/moved -> /p/a/moved\\0040to\\0040here\n"] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn a_message_that_is_no_query_is_refused() {
    use std::io::{Read, Write};
    let lab = Lab::new();
    let mut server = lab.serve();
    // Frames: kind, length, protocol version, JSON.
    for (json, refusal) in [
        ("{\"pool\":{\"name\":\"p\",\"query\":{\"unknown\":1}}}", "not a query of this version"),
        (
            "{\"pool\":{\"name\":\"other\",\"query\":{\"holds\":{\"snapshot\":\"p@1\",\"recursive\":false}}}}",
            "other_pool",
        ),
        ("\"pools\"", "{\"pool\":{\"name\":\"p\",\"guid\":"),
    ] {
        let mut stream = UnixStream::connect(lab.path(&format!("weir/{}.sock", server.id()))).unwrap();
        let mut frame = vec![11];
        frame.extend((json.len() as u32 + 4).to_le_bytes());
        frame.extend(weir_daemon::admin::VERSION.to_le_bytes());
        frame.extend(json.as_bytes());
        stream.write_all(&frame).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains(refusal), "{json}: {answer}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

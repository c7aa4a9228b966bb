//! The error log: what readers find is kept, and shown for each dataset that has the block, for as long as one has it.

use crate::real::import;
use crate::scrub::{destroy_block, pool};
use crate::{work, zdb};
use std::os::unix::fs::FileExt;
use std::path::Path;
use weir_dmu::live::SpaceReserve;
use weir_engine::scrub::errors;
use weir_engine::{Engine, Layout};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool};

fn options(dir: &Path) -> OpenOptions {
    OpenOptions::new(vec![dir.to_owned()], "tank")
}

async fn listed(pool: &Pool) -> (u64, Vec<String>) {
    let rq = &Request::internal("test");
    let errors = weir_pool::errlog::errors(pool, rq).await.unwrap();
    assert_eq!(errors.lost, None);
    (errors.count, weir_pool::errlog::error_lines(pool, rq, &errors, &Default::default()).await)
}

async fn listed_live(engine: &Engine, dir: &Path) -> (u64, Vec<String>) {
    listed(&engine.synced().view(&options(dir)).await.unwrap()).await
}

async fn listed_at_rest(machine: &Machine, dir: &Path) -> (u64, Vec<String>) {
    listed(&Pool::open(machine, &options(dir)).await.unwrap()).await
}

/// Demands that zdb finds each object of the MOS, and each block, referenced once; it does not read damaged data.
fn assert_no_leaks(dir: &Path) {
    let Some(tools) = zdb::tools() else { return };
    let (code, text) = zdb::zdb(&tools, dir, &["-b", "tank"]);
    assert!(code == 0 && text.contains("No leaks"), "exit {code}\n{text}");
    let (code, text) = zdb::zdb(&tools, dir, &["-dd", "tank"]);
    assert!(code == 0 && !text.contains("leaked"), "exit {code}\n{text}");
}

async fn read_all(engine: &Engine, name: &str, object: u64) -> bool {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, name, None).await.unwrap();
    let object = set.object(rq, ObjectId(object)).await.unwrap();
    set.reader().read(rq, &object, 0, 4 << 14, 4 << 14).await.is_ok()
}

/// A damaged block of a file in one device; returns the object.
fn damaged(machine: &Machine, dir: &Path) -> u64 {
    let object = machine.block_on(async {
        let engine = import(machine, dir).await.unwrap();
        let object = work::write_object(&engine, "tank", 4, 77).await.unwrap();
        engine.export().await.unwrap();
        object
    });
    destroy_block(&dir.join("a0"), &work::contents(77, 0));
    object
}

/// Row C2 of the trial: read errors leave a trace.
#[test]
fn c2_read_errors_leave_a_trace() {
    let (dir, machine) = pool("read-errors", Layout::Single, 1);
    let object = damaged(&machine, &dir);
    let line = (1, vec![format!("tank:<{object:#x}>")]);
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        assert!(!read_all(&engine, "tank", object).await);
        assert_eq!(listed_live(&engine, &dir).await, line, "before the next txg");
        engine.sync().await.unwrap();
        assert_eq!(listed_live(&engine, &dir).await, line, "after it");
        engine.stop().await.unwrap();
        assert_eq!(listed_at_rest(&machine, &dir).await, line, "after a restart");
        assert_no_leaks(&dir);

        let engine = import(&machine, &dir).await.unwrap();
        assert!(!read_all(&engine, "tank", object).await);
        engine.export().await.unwrap();
        assert_eq!(listed_at_rest(&machine, &dir).await, line, "found again, and by the last txg of an export");
        assert_no_leaks(&dir);

        let engine = import(&machine, &dir).await.unwrap();
        let rq = &Request::internal("test");
        let set = engine.open_set(rq, "tank", None).await.unwrap();
        {
            let tx = set.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
            set.frees().remove(rq, &tx, ObjectId(object)).await.unwrap();
        }
        engine.sync().await.unwrap();
        assert_eq!(listed_live(&engine, &dir).await, (0, vec![]), "nothing has the block any more");
        engine.export().await.unwrap();
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A lost block is shown for the head, the snapshots and the clones that have it, and for no others.
#[test]
fn a_lost_block_is_shown_where_it_is() {
    let (dir, machine) = pool("affected", Layout::Single, 1);
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        engine.snapshot(vec!["tank@before".into()], Default::default()).await.unwrap();
        engine.stop().await.unwrap();
    });
    let object = damaged(&machine, &dir);
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        engine.snapshot(vec!["tank@with".into()], Default::default()).await.unwrap();
        engine.clone_snapshot("tank@with".into(), "tank/clone".into(), Default::default()).await.unwrap();
        assert!(!read_all(&engine, "tank", object).await);
        engine.sync().await.unwrap();
        let names = |names: &[&str]| {
            let mut lines: Vec<String> = names.iter().map(|name| format!("{name}:<{object:#x}>")).collect();
            lines.sort();
            (names.len() as u64, lines)
        };
        let sorted = |(count, mut lines): (u64, Vec<String>)| {
            lines.sort();
            (count, lines)
        };
        let found = sorted(listed_live(&engine, &dir).await);
        assert_eq!(found, names(&["tank", "tank@with", "tank/clone"]));

        // The head gets another block in that place.
        let set = engine.open_set(rq, "tank", None).await.unwrap();
        {
            let tx = set.begin(rq, 1 << 20, SpaceReserve::Normal).await.unwrap();
            set.writes().write(rq, &tx, ObjectId(object), 0, &work::contents(5, 0)).await.unwrap();
        }
        engine.sync().await.unwrap();
        engine.snapshot(vec!["tank@after".into()], Default::default()).await.unwrap();
        let found = sorted(listed_live(&engine, &dir).await);
        assert_eq!(found, names(&["tank@with", "tank/clone"]));

        engine.destroy_dataset("tank/clone".into()).await.unwrap();
        assert_eq!(listed_live(&engine, &dir).await, names(&["tank@with"]));
        engine.destroy_snapshots(vec!["tank@with".into()], false).await.unwrap();
        assert_eq!(listed_live(&engine, &dir).await, names(&[]));
        engine.export().await.unwrap();
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// `zpool scrub -e`: entries of blocks that are right again, or that no dataset has any more, leave the log; others stay.
#[test]
fn an_error_scrub_takes_from_the_log_what_is_right() {
    let (dir, machine) = pool("error-scrub", Layout::Single, 1);
    let disk = dir.join("a0");
    let object = machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        let object = work::write_object(&engine, "tank", 4, 77).await.unwrap();
        engine.sync().await.unwrap();
        engine.snapshot(vec!["tank@with".into()], Default::default()).await.unwrap();
        engine.export().await.unwrap();
        object
    });
    let block = work::contents(77, 0);
    let at = destroy_block(&disk, &block);
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        engine.error_scrubs().start().await.unwrap();
        assert_eq!(engine.error_scrubs().progress(rq).await.unwrap(), None, "there is nothing to do");
        assert!(!read_all(&engine, "tank", object).await);
        engine.error_scrubs().start().await.unwrap();
        let error = engine.scrubs().start().await.unwrap_err();
        assert!(error.to_string().contains("an error scrub is in progress"), "{error}");
        engine.error_scrubs().run().await.unwrap();
        let ended = engine.error_scrubs().progress(rq).await.unwrap().unwrap();
        assert!(
            errors::is_finished(&ended) && (ended.examined, ended.to_examine, ended.errors) == (1, 0, 1),
            "{ended:?}"
        );
        assert_eq!(listed_live(&engine, &dir).await.0, 2, "the head and the snapshot");

        // Paused, it does nothing, also after an import.
        engine.error_scrubs().start().await.unwrap();
        engine.scrubs().pause().await.unwrap();
        assert!(engine.scrubs().pause().await.unwrap_err().to_string().contains("error scrub is paused"));
        engine.export().await.unwrap();
    });
    std::fs::File::options().write(true).open(&disk).unwrap().write_all_at(&block[..512], at).unwrap();
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        engine.error_scrubs().run().await.unwrap();
        assert_eq!(listed_live(&engine, &dir).await.0, 2);
        engine.error_scrubs().start().await.unwrap();
        engine.error_scrubs().run().await.unwrap();
        let ended = engine.error_scrubs().progress(rq).await.unwrap().unwrap();
        assert!(errors::is_finished(&ended) && (ended.examined, ended.errors) == (1, 0), "{ended:?}");
        assert_eq!(listed_live(&engine, &dir).await, (0, vec![]));
        let events: Vec<String> = engine.events.after(0).events.iter().map(|event| event.class.clone()).collect();
        let has = |class: &str| events.iter().any(|event| event.ends_with(class));
        assert!(has("errorscrub_resume") && has("errorscrub_finish") && !has("errorscrub_start"), "{events:?}");

        engine.export().await.unwrap();
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// One that is stopped keeps what it has not read; a scrub erases its record; blocks that no dataset has any more are not read.
#[test]
fn a_stopped_error_scrub_keeps_the_log() {
    let (dir, machine) = pool("stopped-error-scrub", Layout::Single, 1);
    let object = damaged(&machine, &dir);
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        let scrubs = engine.scrubs();
        let of_errors = engine.error_scrubs();
        assert!(!read_all(&engine, "tank", object).await);
        of_errors.start().await.unwrap();
        scrubs.stop().await.unwrap();
        of_errors.run().await.unwrap();
        assert_eq!(listed_live(&engine, &dir).await.0, 1);
        let stopped = of_errors.progress(rq).await.unwrap().unwrap();
        assert!(!errors::is_open(&stopped) && !errors::is_finished(&stopped) && stopped.examined == 0, "{stopped:?}");

        let set = engine.open_set(rq, "tank", None).await.unwrap();
        {
            let tx = set.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
            set.frees().remove(rq, &tx, ObjectId(object)).await.unwrap();
        }
        engine.sync().await.unwrap();
        of_errors.start().await.unwrap();
        of_errors.run().await.unwrap();
        let ended = of_errors.progress(rq).await.unwrap().unwrap();
        assert!(errors::is_finished(&ended) && (ended.examined, ended.errors) == (1, 0), "{ended:?}");
        of_errors.start().await.unwrap();
        assert_eq!(of_errors.progress(rq).await.unwrap(), Some(ended), "the log has no entry any more");

        scrubs.start().await.unwrap();
        assert_eq!(of_errors.progress(rq).await.unwrap(), None);
        assert!(of_errors.start().await.unwrap_err().to_string().contains("currently scrubbing"));
        scrubs.stop().await.unwrap();
        engine.export().await.unwrap();
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

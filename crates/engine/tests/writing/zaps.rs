//! ZAPs of every shape, changed over several groups, and read by OpenZFS: zdb walks each and looks each name up.

use crate::{real, work, zdb};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use weir_dmu::live::SpaceReserve;
use weir_dmu::zap::{self, Key, NewZap, Value};
use weir_dmu::{ObjectSet, Tx};
use weir_engine::{CreateOptions, Engine, Layout};
use weir_format::ObjectId;
use weir_format::ObjectType;
use weir_format::zap::{NormFlags, ZapFlags};
use weir_machine::Request;
use weir_pool::config::Class;

/// Expected output of zdb: each name with its value.
type Printed = BTreeMap<String, String>;

/// A ZAP and its expected entries.
struct ExpectedZap {
    id: ObjectId,
    words: bool,
    /// Whether it stays a micro ZAP.
    short: bool,
    printed: Printed,
}

impl ExpectedZap {
    async fn make(set: &Arc<ObjectSet>, tx: &Tx, new: &NewZap, short: bool) -> ExpectedZap {
        let id = zap::create(&Request::internal("test"), set, tx, new).await.unwrap();
        ExpectedZap { id, words: new.flags.uint64_key(), short, printed: Printed::new() }
    }

    fn key(&self, n: u64) -> (Key, String) {
        if self.words {
            let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            return (Key::Words(vec![key]), format!("0x{key:010}x"));
        }
        // Where case is folded, two of four are the same.
        let name = match n % 4 {
            0 => format!("Name {}", n / 4),
            1 => format!("NAME {}", n / 4),
            3 if !self.short => format!("a name that no slot of a micro ZAP would hold {n}"),
            _ => format!("name {n}"),
        };
        (Key::from(name.as_str()), name)
    }

    async fn put(&mut self, set: &Arc<ObjectSet>, tx: &Tx, n: u64, value: &Value) {
        let (key, name) = self.key(n);
        zap::put(&Request::internal("test"), set, tx, self.id, &key, value).await.unwrap();
        let list = |words: &[u64]| words.iter().map(|w| format!("{} ", *w as i64)).collect::<String>();
        let text = value.text().filter(|_| !self.words);
        self.printed.insert(name, text.unwrap_or_else(|| list(&value.words)));
    }

    async fn remove(&mut self, set: &Arc<ObjectSet>, tx: &Tx, n: u64) {
        let (key, name) = self.key(n);
        let was_there = zap::remove(&Request::internal("test"), set, tx, self.id, &key).await.unwrap();
        assert_eq!(was_there, self.printed.remove(&name).is_some());
    }

    /// Holds what zdb prints of the object against what is known.
    fn judge(&self, dir: &Path, tools: &Path) {
        let (code, text) = zdb::zdb(tools, dir, &["-dddd", "tank/", &self.id.to_string()]);
        assert_eq!(code, 0, "zdb of object {}: {}", self.id, &text[text.len().saturating_sub(2000)..]);
        let entries = text.lines().filter_map(|line| line.strip_prefix("\t\t")?.split_once(" = "));
        let found: Printed = entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert!(found == self.printed, "object {}: {} entries, {} known", self.id, found.len(), self.printed.len());
        let counted = text.lines().find_map(|line| line.trim().strip_prefix("ZAP entries: "));
        assert!(counted.is_none_or(|n| n == self.printed.len().to_string()), "object {}: {counted:?}", self.id);
    }
}

fn value(n: u64) -> Value {
    match n % 11 {
        7 => Value { int_size: 2, words: vec![n & 0xffff; (n % 40) as usize + 1] },
        8 => Value { int_size: 4, words: vec![n, 2, 3] },
        9 => Value::of_bytes(format!("text {n}\0").as_bytes()),
        10 => Value { int_size: 8, words: (0..n % 90 + 1).map(|i| i.wrapping_mul(n)).collect() },
        _ => Value::word(n),
    }
}

/// ZAPs of every shape, in five groups: what one writes, the next reads back and changes.
async fn fill(engine: &Engine) -> Vec<ExpectedZap> {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    let other = ObjectType::ZAP_OTHER;
    let fold = NewZap { norm: NormFlags(NormFlags::TO_UPPER), ..NewZap::new(other) };
    let shapes = [
        (NewZap::new(other), 9),
        (NewZap::new(other), 6000),
        (NewZap::fat(other, ZapFlags(3), 12, 12), 3000),
        (NewZap::fat(other, ZapFlags(1), 10, 14), 2000),
        (NewZap::fat(other, ZapFlags(7), 15, 17), 3000),
        (fold, 500),
        (NewZap::fat(other, ZapFlags(1), 11, 12), 3000),
    ];
    let mut all = Vec::new();
    for round in 0..5u64 {
        let tx = set.begin(rq, 8 << 20, SpaceReserve::Normal).await.unwrap();
        for (at, (new, count)) in shapes.iter().enumerate() {
            if round == 0 {
                all.push(ExpectedZap::make(&set, &tx, new, *count < 10).await);
            }
            let held = &mut all[at];
            // The last one is filled and emptied again; the small leaves hold words alone.
            let emptied = at == shapes.len() - 1;
            for n in (0..*count).filter(|n| n % 5 == round) {
                let small = held.short || new.block_shift < 12 && new.flags != ZapFlags(0);
                held.put(&set, &tx, n, &if small { Value::word(n) } else { value(n) }).await;
            }
            for n in (0..*count).filter(|n| n % 5 < round && n % 7 == round || emptied && round == 4) {
                held.remove(&set, &tx, n).await;
                if n % 2 == 0 && !emptied {
                    held.put(&set, &tx, n, &Value::word(n + 1)).await;
                }
            }
        }
        drop(tx);
        engine.sync().await.unwrap();
    }
    all
}

#[test]
fn zdb_reads_each_zap() {
    let dir = real::folder("zaps");
    let machine = weir_linux::machine().unwrap();
    let top = |i: usize| real::top(&dir, &format!("a{i}"), Class::Normal, Layout::Single, 1);
    let options = CreateOptions::new("tank", (0..4).map(top).collect());
    let all = machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        let all = fill(&engine).await;
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        all
    });
    zdb::assert_clean(&dir, "tank");
    if let Some(tools) = zdb::tools() {
        all.iter().for_each(|held| held.judge(&dir, &tools));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

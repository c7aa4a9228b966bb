//! Where the kernel refuses rings, or the calls that drive them, threads do the same work: seen in threads whose calls a
//! filter refuses, as containers and older kernels do.
#![allow(unsafe_code, reason = "a filter of system calls is set by a system call")]
#![allow(clippy::disallowed_methods, reason = "the filter is for one thread and those that it starts")]

use super::Backend;
use crate::disk::{Access, Disk, Io, Op, Parts};
use crate::{Buf, Machine, Production};
use smallvec::smallvec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// From now on, this thread and those that it starts get `errno` for a system call.
fn refuse(call: libc::c_long, errno: i32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        // The number of the call stands at the front of what a filter looks at.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program and its steps live until the calls have returned; the kernel keeps a copy.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
    };
    assert_eq!(set, 0, "no filter: {}", std::io::Error::last_os_error());
}

/// Writes, flushes and reads through a machine's disks.
fn works(machine: &Machine, path: &std::path::Path) {
    std::fs::File::create(path).unwrap().set_len(1 << 20).unwrap();
    let disk = machine.disks.open(path, Access::ReadWrite).unwrap();
    machine.block_on(async {
        for n in 0..64u8 {
            disk.write(u64::from(n) * 4096, Buf::copy_from(&[n; 4096])).await.unwrap();
        }
        disk.flush().await.unwrap();
        for n in 0..64u8 {
            assert_eq!(disk.read(u64::from(n) * 4096, 4096).await.unwrap().as_ref(), [n; 4096]);
        }
    });
}

#[test]
fn threads_do_the_work_where_rings_are_refused() {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter];
    for (call, errno) in calls.into_iter().flat_map(|call| [(call, libc::EPERM), (call, libc::ENOSYS)]) {
        let refused = std::thread::spawn(move || {
            refuse(call, errno);
            let asked = Production::default().backend(Backend::Uring).build();
            assert!(asked.is_err(), "call {call}: a ring by name is an error");
            let disks = super::RealDisks::new(Backend::Auto, true, crate::BufPool::new(0)).unwrap();
            assert_eq!(disks.backend(), Backend::Threads, "call {call}");
            let path = std::env::temp_dir().join(format!("weir-no-rings-{}-{call}-{errno}", std::process::id()));
            works(&Production::default().build().unwrap(), &path);
            std::fs::remove_file(&path).unwrap();
        });
        refused.join().unwrap();
    }
}

#[test]
fn a_thread_without_a_ring_of_its_own_uses_the_shared_one() {
    let done = std::thread::spawn(|| {
        let Ok(machine) = Production::default().backend(Backend::Uring).build() else {
            return eprintln!("skipped: no io_uring here");
        };
        refuse(libc::SYS_io_uring_setup, libc::EMFILE);
        let path = std::env::temp_dir().join(format!("weir-no-own-ring-{}", std::process::id()));
        works(&machine, &path);
        std::fs::remove_file(&path).unwrap();
    });
    done.join().unwrap();
}

/// Each answer starts the next read, as a queue before a disk does for those who wait.
fn go_on(disk: &Arc<dyn Disk>, left: &Arc<AtomicU32>) {
    if left.fetch_sub(1, Ordering::SeqCst) > 1 {
        let (next, rest) = (disk.clone(), left.clone());
        let done = Box::new(move |_| go_on(&next, &rest));
        let bufs = smallvec![disk.buffer(4096)];
        disk.submit(Io { op: Op::Read, offset: 0, len: 4096, bufs, parts: Parts::new(), here: false, done });
    }
}

#[test]
fn a_drive_ends_though_others_go_on_with_what_it_began() {
    let Ok(machine) = Production::default().backend(Backend::Uring).build() else {
        return eprintln!("skipped: no io_uring here");
    };
    let path = std::env::temp_dir().join(format!("weir-go-on-{}", std::process::id()));
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
    let left = Arc::new(AtomicU32::new(20_000));
    machine.block_on(async { go_on(&disk, &left) });
    assert!(left.load(Ordering::SeqCst) > 0, "it was held until nobody wanted anything any more");
    while left.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
    std::fs::remove_file(&path).unwrap();
}

//! Tests of the fallback from io_uring to threads, in threads with a seccomp filter that rejects the system calls, as
//! containers and older kernels do.
#![allow(unsafe_code, reason = "the seccomp filter is installed by a system call")]
#![allow(clippy::disallowed_methods, reason = "the filter applies to one thread and those that it starts")]

use crate::Backend;
use crate::Production;
use smallvec::smallvec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_machine::disk::{Access, Disk, Io, Op, Parts};
use weir_machine::{Buf, Machine};

/// Makes a system call fail with `errno` in this thread and those that it starts.
fn reject_syscall(call: libc::c_long, errno: i32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        // The system call's number is the first field of the filter's input.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: program and steps outlive the calls; the kernel copies them.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
    };
    assert_eq!(set, 0, "cannot install the filter: {}", std::io::Error::last_os_error());
}

/// Writes, flushes and reads through a machine's disks.
fn exercise(machine: &Machine, path: &std::path::Path) {
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
fn threads_are_used_if_io_uring_is_rejected() {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter];
    for (call, errno) in calls.into_iter().flat_map(|call| [(call, libc::EPERM), (call, libc::ENOSYS)]) {
        let thread = std::thread::spawn(move || {
            reject_syscall(call, errno);
            let result = Production::default().backend(Backend::Uring).build();
            assert!(result.is_err(), "call {call}: requesting io_uring explicitly is an error");
            let disks = crate::RealDisks::new(Backend::Auto, true, weir_machine::BufPool::new(0)).unwrap();
            assert_eq!(disks.backend(), Backend::Threads, "call {call}");
            let path = std::env::temp_dir().join(format!("weir-no-rings-{}-{call}-{errno}", std::process::id()));
            exercise(&Production::default().build().unwrap(), &path);
            std::fs::remove_file(&path).unwrap();
        });
        thread.join().unwrap();
    }
}

#[test]
fn a_thread_without_a_local_ring_uses_the_shared_one() {
    let done = std::thread::spawn(|| {
        let Ok(machine) = Production::default().backend(Backend::Uring).build() else {
            return eprintln!("skipped: no io_uring here");
        };
        reject_syscall(libc::SYS_io_uring_setup, libc::EMFILE);
        let path = std::env::temp_dir().join(format!("weir-no-own-ring-{}", std::process::id()));
        exercise(&machine, &path);
        std::fs::remove_file(&path).unwrap();
    });
    done.join().unwrap();
}

/// Each completion starts the next read, like a device queue.
fn start_next(disk: &Arc<dyn Disk>, left: &Arc<AtomicU32>) {
    if left.fetch_sub(1, Ordering::SeqCst) > 1 {
        let next = disk.clone();
        let rest = left.clone();
        let done = Box::new(move |_| start_next(&next, &rest));
        let bufs = smallvec![disk.buffer(4096)];
        disk.submit(Io { op: Op::Read, offset: 0, len: 4096, bufs, parts: Parts::new(), here: false, done });
    }
}

#[test]
fn block_on_returns_although_completions_start_further_reads() {
    let Ok(machine) = Production::default().backend(Backend::Uring).build() else {
        return eprintln!("skipped: no io_uring here");
    };
    let path = std::env::temp_dir().join(format!("weir-go-on-{}", std::process::id()));
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
    let left = Arc::new(AtomicU32::new(20_000));
    machine.block_on(async { start_next(&disk, &left) });
    assert!(left.load(Ordering::SeqCst) > 0, "block_on waited for all reads");
    while left.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
    std::fs::remove_file(&path).unwrap();
}

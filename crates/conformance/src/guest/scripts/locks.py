"""Byte-range locks (fcntl) and locks of whole files (flock) on one file: what POSIX grants and refuses, and that waiting ends.

    locks.py FILE            two processes of this machine
    locks.py FILE hold       takes a lock, prints HELD, releases it when /tmp/release exists
    locks.py FILE refused    succeeds if another client holds that lock
    locks.py FILE granted    succeeds if it gets that lock within a minute
"""

import fcntl
import os
import sys
import time

path = sys.argv[1]


def taken(lock, start, length):
    """Whether another process holds a conflicting lock: asked by a child, whose locks are its own."""
    child = os.fork()
    if child == 0:
        with open(path, "r+b") as file:
            try:
                fcntl.lockf(file, lock | fcntl.LOCK_NB, length, start)
            except (BlockingIOError, PermissionError):
                os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1), f"the child ended with {code}"
    return code == 1


def hold():
    with open(path, "a+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 100)
        print("HELD", flush=True)
        while not os.path.exists("/tmp/release"):
            time.sleep(0.1)


def refused():
    assert taken(fcntl.LOCK_EX, 100, 1), "the other client's lock excludes"
    assert taken(fcntl.LOCK_SH, 105, 1), "the other client's lock excludes readers"
    assert not taken(fcntl.LOCK_EX, 110, 1), "the range ends where it ends"
    with open(path, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return
    raise AssertionError("the other client's lock excludes flock, which locks the whole file")


def granted():
    until = time.monotonic() + 60
    while taken(fcntl.LOCK_EX, 100, 10):
        assert time.monotonic() < until, "the lock was released by the other client"
        time.sleep(0.2)


def two_processes():
    with open(path, "wb") as file:
        file.write(bytes(1000))
    with open(path, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 100, 200)
        assert taken(fcntl.LOCK_EX, 250, 1), "an exclusive lock excludes"
        assert taken(fcntl.LOCK_SH, 299, 10), "an exclusive lock excludes readers"
        assert not taken(fcntl.LOCK_EX, 300, 10), "the range ends where it ends"
        assert not taken(fcntl.LOCK_EX, 0, 200), "the range begins where it begins"
        # A hole in the middle.
        fcntl.lockf(file, fcntl.LOCK_UN, 20, 240)
        assert not taken(fcntl.LOCK_EX, 240, 20), "the middle was released"
        assert taken(fcntl.LOCK_EX, 230, 10), "the left part was kept"
        assert taken(fcntl.LOCK_EX, 260, 10), "the right part was kept"
        # Downgrade.
        fcntl.lockf(file, fcntl.LOCK_SH, 100, 200)
        assert not taken(fcntl.LOCK_SH, 200, 100), "shared locks are shared"
        assert taken(fcntl.LOCK_EX, 200, 100), "a shared lock excludes writers"
        # To the end of the file, whatever its length.
        fcntl.lockf(file, fcntl.LOCK_EX, 0, 900)
        assert taken(fcntl.LOCK_EX, 1 << 40, 1), "a lock without length is endless"
        # A waiting process gets the lock when it is released.
        fcntl.lockf(file, fcntl.LOCK_UN)
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 0)
        waiting, ready = os.pipe()
        child = os.fork()
        if child == 0:
            with open(path, "r+b") as other:
                os.write(ready, b"w")
                fcntl.lockf(other, fcntl.LOCK_EX, 10, 0)
            os._exit(0)
        os.read(waiting, 1)
        time.sleep(0.5)  # a lock that is granted too early is granted by then
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it waits"
        fcntl.lockf(file, fcntl.LOCK_UN, 10, 0)
        begun = time.monotonic()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print(f"granted after {time.monotonic() - begun:.1f} s")
    with open(path, "r+b") as file:
        assert not taken(fcntl.LOCK_EX, 0, 0), "all locks end with their process"


{"hold": hold, "refused": refused, "granted": granted}.get("".join(sys.argv[2:]), two_processes)()

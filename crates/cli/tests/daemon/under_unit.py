"""Runs a program under the system call filter and the capabilities of a systemd unit, without systemd.

    under_unit.py UNIT PROGRAM ARGUMENT…

From the unit: SystemCallFilter= (sets are those of this machine's `systemd-analyze syscall-filter`), SystemCallErrorNumber=,
RestrictAddressFamilies=, RestrictNamespaces=yes, RestrictRealtime=yes, RestrictSUIDSGID=yes, MemoryDenyWriteExecute=yes,
LockPersonality=yes, CapabilityBoundingSet=, NoNewPrivileges=yes. Needs libseccomp.so.2, and root for the capabilities.
"""

import ctypes
import errno
import os
import re
import socket
import subprocess
import sys

ALLOW = 0x7FFF0000
EQ, MASKED_EQ, GE, NE = 4, 7, 5, 1
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
# Bits of clone() that make namespaces, and unshare() takes: mount, cgroup, uts, ipc, user, pid, net.
NAMESPACES = [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]
# Numbers of capabilities (linux/capability.h), in order.
CAPABILITIES = """chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service
net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin sys_boot
sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override mac_admin syslog
wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore""".split()


class Argument(ctypes.Structure):
    _fields_ = [("number", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def directives(unit):
    """Values by name; a list holds each line."""
    found = {}
    for line in open(unit, encoding="utf-8"):
        name, equals, value = line.strip().partition("=")
        if equals and re.fullmatch("[A-Za-z]+", name):
            found.setdefault(name, []).append(value)
    return found


def calls(word):
    """The system calls of a set, or the one of this name."""
    if not word.startswith("@"):
        return {word}
    text = subprocess.run(["systemd-analyze", "syscall-filter", word], check=True, capture_output=True, text=True).stdout
    inner = [line.strip() for line in text.splitlines()[1:]]
    return set().union(*(calls(name) for name in inner if name and not name.startswith("#")))


def permitted(lines):
    """What SystemCallFilter= allows: the first line is a list of allowed calls, those with ~ take some away."""
    allowed = calls("@default")
    for line in lines:
        is_denied = line.startswith("~")
        listed = set().union(*(calls(word) for word in line.lstrip("~").split()))
        allowed = allowed - listed if is_denied else allowed | listed
    return allowed


class Filter:
    def __init__(self, refused):
        self.lib = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self.lib.seccomp_init.restype = ctypes.c_void_p
        self.refused = 0x00050000 | refused
        self.context = ctypes.c_void_p(self.lib.seccomp_init(ALLOW))

    def rule(self, call, *arguments, refused=None):
        number = self.lib.seccomp_syscall_resolve_name(call.encode())
        if number < 0:
            return
        list_of = (Argument * max(1, len(arguments)))(*arguments)
        action = self.refused if refused is None else 0x00050000 | refused
        done = self.lib.seccomp_rule_add_array(self.context, ctypes.c_uint32(action), number, len(arguments), list_of)
        if done not in (0, -errno.EEXIST, -errno.EACCES):
            raise OSError(-done, f"a rule for {call}")

    def load(self):
        done = self.lib.seccomp_load(self.context)
        if done:
            raise OSError(-done, "the filter")


def every_call(lib):
    """Names of the calls that libseccomp knows on this architecture."""
    lib.seccomp_syscall_resolve_num_arch.restype = ctypes.c_char_p
    native = lib.seccomp_arch_native()
    names = (lib.seccomp_syscall_resolve_num_arch(native, number) for number in range(600))
    return {name.decode() for name in names if name}


def main():
    unit, program = sys.argv[1], sys.argv[2:]
    found = directives(unit)
    word = found.get("SystemCallErrorNumber", ["EPERM"])[-1]
    allowed = permitted(found["SystemCallFilter"])
    is_on = lambda name: found.get(name, ["no"])[-1] == "yes"
    libc = ctypes.CDLL(None, use_errno=True)
    if "CapabilityBoundingSet" in found:
        kept = {name.removeprefix("CAP_").lower() for line in found["CapabilityBoundingSet"] for name in line.split()}
        for number, name in enumerate(CAPABILITIES):
            if name not in kept and libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) and ctypes.get_errno() != errno.EINVAL:
                raise OSError(ctypes.get_errno(), f"dropping {name}")
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    rules = Filter(getattr(errno, word))
    for call in every_call(rules.lib) - allowed:
        rules.rule(call)
    families = {getattr(socket, name) for line in found.get("RestrictAddressFamilies", []) for name in line.split()}
    if families:
        for family in set(range(0, 64)) - families:
            rules.rule("socket", Argument(0, EQ, family, 0), refused=errno.EAFNOSUPPORT)
    if is_on("RestrictNamespaces"):
        for bit in NAMESPACES:
            for call in ["clone", "unshare"]:
                rules.rule(call, Argument(0, MASKED_EQ, bit, bit))
        rules.rule("setns")
    if is_on("RestrictRealtime"):
        for policy in [1, 2, 6]:
            rules.rule("sched_setscheduler", Argument(1, EQ, policy, 0))
    if is_on("RestrictSUIDSGID"):
        for bit in [0o4000, 0o2000]:
            for call, place in [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mkdir", 1), ("mkdirat", 2), ("mknod", 1), ("mknodat", 2)]:
                rules.rule(call, Argument(place, MASKED_EQ, bit, bit))
    if is_on("MemoryDenyWriteExecute"):
        rules.rule("mmap", Argument(2, MASKED_EQ, 6, 6))
        rules.rule("mprotect", Argument(2, MASKED_EQ, 4, 4))
        rules.rule("pkey_mprotect", Argument(2, MASKED_EQ, 4, 4))
        rules.rule("shmat", Argument(2, MASKED_EQ, 0o100000, 0o100000))
    if is_on("LockPersonality"):
        rules.rule("personality", Argument(0, NE, 0xFFFFFFFF, 0))
    os.umask(int(found.get("UMask", ["0022"])[-1], 8))
    rules.load()
    os.execvp(program[0], program)


main()

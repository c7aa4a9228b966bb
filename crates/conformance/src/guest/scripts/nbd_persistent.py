"""Connects /dev/nbdN to a server and, whenever the connection ends, to a new one, by the kernel's own interface.

    nbd_persistent.py NAME HOST PORT INDEX

nbd-client does not ask the kernel to keep requests while a server restarts: they fail. With the attributes below, the
kernel keeps them, and sends those that were not answered again over the socket that NBD_CMD_RECONFIGURE hands it.
The program ends when the device is connected; a child stays until it is disconnected.
"""

import os
import select
import socket
import struct
import sys
import time

NBD_CMD_CONNECT, NBD_CMD_RECONFIGURE = 1, 3
INDEX, SIZE_BYTES, BLOCK_BYTES, TIMEOUT, SERVER_FLAGS, SOCKETS, DEAD_CONN_TIMEOUT = 1, 2, 3, 4, 5, 7, 8
SOCK_ITEM, SOCK_FD = 1, 1
REQUEST_SECONDS, RECONNECT_SECONDS = 10, 300

OPTION_MAGIC, REPLY_MAGIC = b"IHAVEOPT", 0x3E889045565A9
OPT_GO, REP_ACK, REP_INFO, INFO_EXPORT = 7, 1, 3, 0


def exactly(sock, count):
    data = sock.recv(count, socket.MSG_WAITALL)
    if len(data) != count:
        raise ConnectionError("the server closed the connection")
    return data


def connected(name, host, port):
    """A socket past the handshake, the size of the export, and its flags."""
    sock = socket.create_connection((host, port), timeout=20)
    if exactly(sock, 16) != b"NBDMAGIC" + OPTION_MAGIC:
        raise ConnectionError("not an NBD server")
    exactly(sock, 2)
    go = struct.pack(">I", len(name)) + name.encode() + struct.pack(">H", 0)
    sock.sendall(struct.pack(">I", 3) + OPTION_MAGIC + struct.pack(">II", OPT_GO, len(go)) + go)
    size = flags = None
    while True:
        magic, _, kind, length = struct.unpack(">QIII", exactly(sock, 20))
        data = exactly(sock, length)
        if magic != REPLY_MAGIC or kind & 0x80000000:
            raise ConnectionError(f"refused: {kind:#x} {data!r}")
        if kind == REP_INFO and struct.unpack(">H", data[:2]) == (INFO_EXPORT,):
            size, flags = struct.unpack(">QH", data[2:12])
        if kind == REP_ACK:
            sock.settimeout(None)
            return sock, size, flags


def attribute(kind, payload):
    length = 4 + len(payload)
    return struct.pack("=HH", length, kind) + payload + bytes(-length % 4)


def number(kind, value):
    return attribute(kind, struct.pack("=Q", value))


def ask(netlink, family, command, attributes):
    """Sends a generic netlink message; returns the payload of the answer."""
    body = struct.pack("=BBH", command, 1, 0) + attributes
    netlink.send(struct.pack("=IHHII", 16 + len(body), family, 5, 1, 0) + body)
    while True:
        answer = netlink.recv(65536)
        _, kind = struct.unpack("=IH", answer[:6])
        if kind != 2:
            payload = answer[20:]
            continue
        (code,) = struct.unpack("=i", answer[16:20])
        if code:
            raise OSError(-code, os.strerror(-code))
        return payload if "payload" in locals() else b""


def family_of(netlink, name):
    answer = ask(netlink, 16, 3, attribute(2, name.encode() + b"\0"))
    while answer:
        length, kind = struct.unpack("=HH", answer[:4])
        if kind == 1:
            return struct.unpack("=H", answer[4:6])[0]
        answer = answer[(length + 3) & ~3 :]
    raise OSError("the kernel's nbd has no netlink interface")


def tell(netlink, family, command, index, sock, extra=b""):
    item = attribute(SOCK_ITEM | 0x8000, attribute(SOCK_FD, struct.pack("=I", sock.fileno())))
    timeouts = number(TIMEOUT, REQUEST_SECONDS) + number(DEAD_CONN_TIMEOUT, RECONNECT_SECONDS)
    which = attribute(INDEX, struct.pack("=I", index))
    ask(netlink, family, command, which + extra + timeouts + attribute(SOCKETS | 0x8000, item))


def main():
    name, host, port, index = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
    family = family_of(netlink, "nbd")
    sock, size, flags = connected(name, host, port)
    export = number(SIZE_BYTES, size) + number(BLOCK_BYTES, 4096) + number(SERVER_FLAGS, flags)
    tell(netlink, family, NBD_CMD_CONNECT, index, sock, export)
    if os.fork():
        return
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    while True:
        # The kernel reads from the socket; here only its end is of interest.
        ended = select.poll()
        ended.register(sock, select.POLLRDHUP)
        ended.poll()
        sock.close()
        until = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                sock, _, _ = connected(name, host, port)
                break
            except OSError:
                if time.monotonic() > until:
                    return
                time.sleep(0.2)
        # Fails, and so ends this process, once the device is disconnected.
        tell(netlink, family, NBD_CMD_RECONFIGURE, index, sock)


main()

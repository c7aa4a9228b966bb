# Cases over NFS: functions that end with a failure unless all is as it should be. /mnt is the mount.

mounted() {
    modprobe -a nfsv3 nfs
    mkdir -p /mnt
    "$@"
    grep ' /mnt nfs ' /proc/mounts
}

# What a mount with locks needs in the client: a port mapper and a status monitor.
locking_started() {
    modprobe -a lockd nfsv3
    pidof rpcbind >/dev/null || rpcbind
    mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak
    pidof rpc.statd >/dev/null || rpc.statd --no-notify
}

# Mounts with the same options again: nothing is in the client's cache.
remounted() {
    sync
    umount /mnt
    echo 3 >/proc/sys/vm/drop_caches
    "$@"
}

# Random bytes of several lengths, written, read and compared from the server.
files() {
    for size in 0 1 4095 4096 4097 131072 1048577 8388608; do
        head -c $size /dev/urandom >/tmp/file-$size
        cp /tmp/file-$size /mnt/file-$size
    done
    remounted "$@"
    for size in 0 1 4095 4096 4097 131072 1048577 8388608; do
        cmp /tmp/file-$size /mnt/file-$size
        [ "$(stat -c %s /mnt/file-$size)" = $size ]
        rm /tmp/file-$size
    done
    # Append, overwrite in the middle, truncate, a hole.
    printf start >/mnt/edited
    printf end >>/mnt/edited
    printf AR | dd of=/mnt/edited bs=1 seek=2 conv=notrunc status=none
    truncate -s 1M /mnt/edited
    printf last >>/mnt/edited
    remounted "$@"
    [ "$(head -c 8 /mnt/edited)" = stARtend ]
    [ "$(tail -c 4 /mnt/edited)" = last ]
    [ "$(stat -c %s /mnt/edited)" = 1048580 ]
}

# Names, links, times, modes and owners.
names() {
    mkdir -p /mnt/names/deep/er
    cd /mnt/names
    touch -d '2001-02-03 04:05:06.789' old
    chmod 6751 old
    ln old hard
    ln -s ../names/old soft
    mkfifo pipe
    mknod node c 1 3
    touch "$(printf 'white space\tand\303\274')" "$(head -c 255 /dev/zero | tr '\0' n)"
    if touch "$(head -c 256 /dev/zero | tr '\0' n)"; then return 1; fi 2>/dev/null
    mv deep moved
    chown 1000:1000 moved
    cd /
    remounted "$@"
    cd /mnt/names
    [ "$(stat -c '%Y %a %h' old)" = "$(date -d '2001-02-03 04:05:06' +%s) 6751 2" ]
    [ "$(stat -c %y old | cut -c 21-23)" = 789 ]
    [ "$(stat -c %i old)" = "$(stat -c %i hard)" ]
    [ "$(readlink soft)" = ../names/old ]
    [ -p pipe ] && [ -c node ] && [ -d moved/er ]
    [ "$(stat -c %u:%g moved)" = 1000:1000 ]
    [ "$(ls | wc -l)" = 8 ]
    rmdir moved/er
    if rmdir /mnt/names; then return 1; fi 2>/dev/null
}

# Many files in one directory: all are listed once, all can be opened, all can be removed.
many() {
    count=$1
    mkdir /mnt/many
    cd /mnt/many
    seq -f file-%g "$count" | xargs touch
    [ "$(ls -f | sort -u | grep -c ^file-)" = "$count" ]
    ls -l | awk 'NR > 1 && $5 != 0 { exit 1 }'
    seq -f file-%g 1 2 "$count" | xargs rm
    [ "$(ls -f | grep -c ^file-)" = $((count / 2)) ]
    cd /
    rm -r /mnt/many
}

# C sources copied in, built there and in memory: programs, and what they make, are the same.
build() {
    for place in /tmp /mnt; do
        cp -r /judge/sources $place/sources
        cd $place/sources
        cat >main.c <<'MAIN'
#include <stdio.h>
#include <stdlib.h>
#include "lz4.h"
int main(void) {
    static char in[1 << 20], out[LZ4_COMPRESSBOUND(1 << 20)], back[1 << 20];
    int n = fread(in, 1, sizeof in, stdin), m = LZ4_compress_default(in, out, n, sizeof out);
    if (m <= 0 || LZ4_decompress_safe(out, back, m, sizeof back) != n) return 1;
    fwrite(back, 1, n, stdout);
    return 0;
}
MAIN
        for file in lz4 lz4hc lz4frame xxhash main; do tcc -c -DXXH_NAMESPACE=LZ4_ $file.c -o $file.o; done
        tcc -o program main.o lz4.o
        ./program <lz4.c >out.c
        cmp lz4.c out.c
    done
    cd /
    diff -r /tmp/sources /mnt/sources
    rm -r /tmp/sources
}

# Random operations on one file, against a model.
fsx() {
    /judge/fsx -f /judge/fsx.toml -P /tmp -S 3 -N "$1" /mnt/fsx
}

# POSIX rules of each call; prints what failed.
pjdfstest() {
    mkdir -p /mnt/pjdfstest /tmp/second
    chmod 777 /mnt/pjdfstest
    /judge/pjdfstest -c /judge/pjdfstest.toml -p /mnt/pjdfstest -s /tmp/second >/tmp/pjdfstest.log 2>&1 || true
    grep FAILED /tmp/pjdfstest.log || true
    grep ^Summary: /tmp/pjdfstest.log || tail /tmp/pjdfstest.log
}

before_snapshot() {
    printf 'as it was' >/mnt/kept
    sync /mnt/kept
}

after_snapshot() {
    printf 'as it is now' >/mnt/kept
    rm -f /mnt/edited
    [ "$(cat /mnt/.zfs/snapshot/one/kept)" = 'as it was' ]
    [ "$(stat -c %s /mnt/.zfs/snapshot/one/edited)" = 1048580 ]
    ls /mnt/.zfs/snapshot/one/names >/dev/null
    if touch /mnt/.zfs/snapshot/one/new; then return 1; fi 2>/dev/null
    [ "$(cat /mnt/kept)" = 'as it is now' ]
}

# Byte-range locks: locks FILE [hold|refused|granted]
locks() {
    python3 /judge/locks.py "/mnt/$@"
}

unmounted() {
    cd /
    umount /mnt
}

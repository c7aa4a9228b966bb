#!/usr/bin/env bash
# Pools made and read by zfs-fuse (Sun's ZFS of 2008 in user space), for benchmarks and as a peer to race.
#
#   zfs-fuse.sh TOOLS DIR make              pools b-single b-mirror b-stripe b-raidz2 in DIR: a large file in the root,
#                                           and a file of 8 KiB records in the file system r8k
#   zfs-fuse.sh TOOLS DIR make-scan         pool b-scan: directories of 10,000, 100,000 and 1,000,000 entries (hard links of
#                                           one file), and 1,000, 3,000 and 10,000 snapshots below s1000, s3000, s10000
#   zfs-fuse.sh TOOLS DIR read POOL FILE    seconds and bytes of one cold sequential read of POOL/FILE, after a fresh import
#   zfs-fuse.sh TOOLS DIR write POOL IMAGE COMMAND...
#                                           makes a new pool on IMAGE and runs COMMAND, with the mountpoint behind it
#
# TOOLS is the folder of fetch-zfs-tools.sh --peer. zfs-fuse talks through a socket at a fixed place, keeps a list of
# pools and mounts its file systems by itself: everything runs in a mount namespace of its own over an empty /run and a
# shadow of /var/lib, so nothing of it is seen outside, and it all ends with the script.
set -euo pipefail

if [ "${WEIR_IN_NAMESPACE:-}" != 1 ]; then
    command -v unshare >/dev/null || { echo "no unshare(1) here" >&2; exit 3; }
    [ "$(id -u)" = 0 ] && [ -e /dev/fuse ] || { echo "zfs-fuse needs root and /dev/fuse" >&2; exit 3; }
    WEIR_IN_NAMESPACE=1 exec unshare --mount --propagation private -- "$0" "$@"
fi

tools=$1
dir=$(cd "$2" && pwd)
what=$3
peer=$tools/peer
[ -x "$peer/sbin/zfs-fuse" ] || { echo "zfs-fuse is not in $peer" >&2; exit 3; }
export LD_LIBRARY_PATH=$peer/lib/x86_64-linux-gnu

mount -t tmpfs tmpfs /run
mkdir -p /run/zfs /run/lock /run/weir-mnt /run/var/upper /run/var/work
# It keeps a list of pools in /var/lib/zfs; that too goes with the namespace.
mount -t overlay -o lowerdir=/var/lib,upperdir=/run/var/upper,workdir=/run/var/work overlay /var/lib
mkdir -p "$dir"
"$peer/sbin/zfs-fuse" --no-daemon --no-kstat-mount --disable-block-cache --disable-page-cache -m 512 >"$dir/zfs-fuse.log" 2>&1 &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null || true' EXIT
for _ in $(seq 100); do
    [ -S /run/zfs/zfs_socket ] && break
    sleep 0.1
done
zpool() { "$peer/sbin/zpool" "$@"; }

# Makes one pool of files: NAME MIB-OF-DATA LAYOUT-WORD COUNT SIZE-OF-EACH
make() {
    local name=$1 data_mib=$2 layout=$3 count=$4 size=$5 files=() number
    mkdir -p "$dir/$name"
    [ ! -e "$dir/$name/.made" ] || { echo "already there: $name"; return; }
    for number in $(seq 0 $((count - 1))); do
        rm -f "$dir/$name/d$number.img"
        truncate -s "$size" "$dir/$name/d$number.img"
        files+=("$dir/$name/d$number.img")
    done
    # shellcheck disable=SC2086  # an empty layout word must vanish
    zpool create -f -m "/run/weir-mnt/$name" "$name" $layout "${files[@]}"
    dd if=/dev/urandom of="/run/weir-mnt/$name/large" bs=1M count="$data_mib" status=none
    "$peer/sbin/zfs" create -o recordsize=8K "$name/r8k"
    dd if=/dev/urandom of="/run/weir-mnt/$name/r8k/small" bs=1M count=96 status=none
    zpool export "$name"
    sync -f "$dir/$name"
    touch "$dir/$name/.made"
    echo "made $name: $data_mib MiB on $count files"
}

# Links one file N times in a directory of its own.
entries() {
    mkdir "$1/d$2"
    touch "$1/d$2/0"
    python3 - "$1/d$2" "$2" <<'END'
import os, sys
os.chdir(sys.argv[1])
for number in range(1, int(sys.argv[2])):
    os.link("0", f"entry-{number:07}")
END
}

make_scan() {
    local name=b-scan number count root=/run/weir-mnt/b-scan
    mkdir -p "$dir/$name"
    [ ! -e "$dir/$name/.made" ] || { echo "already there: $name"; return; }
    rm -f "$dir/$name/d0.img"
    truncate -s 2G "$dir/$name/d0.img"
    zpool create -f -m "$root" "$name" "$dir/$name/d0.img"
    for count in 1000 3000 10000; do
        "$peer/sbin/zfs" create -o mountpoint=none "$name/s$count"
        for number in $(seq $((count / 100))); do
            "$peer/sbin/zfs" create "$name/s$count/$number"
        done
        # The parent has snapshots as well: one file system fewer would give the round number.
        "$peer/sbin/zfs" destroy "$name/s$count/1"
        for number in $(seq 100); do
            "$peer/sbin/zfs" snapshot -r "$name/s$count@$number"
        done
    done
    for count in 10000 100000 1000000; do entries "$root" "$count"; done
    zpool export "$name"
    sync -f "$dir/$name"
    touch "$dir/$name/.made"
    echo "made $name"
}

case $what in
make-scan)
    make_scan
    ;;
make)
    make b-single 640 "" 1 1G
    make b-mirror 512 mirror 2 896M
    make b-stripe 512 "" 3 384M
    make b-raidz2 768 raidz2 6 384M
    ;;
read)
    pool=$4
    file=$5
    zpool import -R /run/weir-mnt -d "$dir/$pool" "$pool"
    mountpoint=$(awk -v pool="$pool" '$1 == pool { print $2 }' /proc/self/mounts)
    start=$(date +%s.%N)
    bytes=$(dd if="$mountpoint/$file" bs=1M status=none | wc -c)
    end=$(date +%s.%N)
    zpool export "$pool"
    awk -v start="$start" -v end="$end" -v bytes="$bytes" 'BEGIN { printf "%.3f %d\n", end - start, bytes }'
    ;;
write)
    pool=$4
    image=$5
    shift 5
    zpool create -f -m "/run/weir-mnt/$pool" "$pool" "$image"
    # The pool ends with the daemon.
    "$@" "/run/weir-mnt/$pool"
    ;;
*)
    echo "zfs-fuse.sh TOOLS DIR make | make-scan | read POOL FILE | write POOL IMAGE COMMAND..." >&2
    exit 2
    ;;
esac

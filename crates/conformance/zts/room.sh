#!/bin/sh
# Process 1 of the namespaces in which tests of OpenZFS run: `room.sh FOLDER SUITE`.
#
# The root directory is an overlay whose changes go to FOLDER/upper. /tmp and /var/tmp are folders in FOLDER, /run and
# Weir's state are empty, and the only network interface is the loopback. When standard input ends, so does this
# process, and with it everything in the room: the kernel kills the processes of a PID namespace with its process 1.
set -e
folder=$1
suite=$2
root=$folder/root
read -r pid _ < /proc/self/stat

mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
for place in dev sys; do
    mount --rbind "/$place" "$root/$place"
done
mkdir -p "$root/weir-zts/tools" "$root/weir-zts/log" "$root/usr/share/zfs" "$root/var/lib/weir"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/var/lib/weir"
mount --bind "$folder/tmp" "$root/tmp"
mount --bind "$folder/var-tmp" "$root/var/tmp"
mount --bind "$folder/log" "$root/weir-zts/log"
mount --bind "$suite" "$root/weir-zts/tools"
mount --bind "$suite/usr/share/zfs" "$root/usr/share/zfs"
mount -t proc proc "$root/proc"
# Scripts for `zpool status -c` and `zpool iostat -c`.
mkdir -p "$root/etc/zfs"
[ -e "$root/etc/zfs/zpool.d" ] || cp -rL "$suite/usr/lib/zfs-linux/zpool.d" "$root/etc/zfs/zpool.d"
# The nested pool of these tests has its devices in a mount of the first pool, which one process cannot hold (docs/limits.md):
# here they are in a folder beside it.
checkpoint=usr/share/zfs/zfs-tests/tests/functional/pool_checkpoint/pool_checkpoint.kshlib
mkdir -p "$folder/var-tmp/disks"
sed -e 's|^FILEDISKDIR=.*|FILEDISKDIR=/var/tmp/disks|' -e 's|^FILEDISK\([12]\)=.*|FILEDISK\1=/var/tmp/disks/dsk\1|' \
    "$suite/$checkpoint" > "$folder/pool_checkpoint.kshlib"
mount --bind "$folder/pool_checkpoint.kshlib" "$root/weir-zts/tools/$checkpoint"
# Parameters of the kernel module that setups set; they have no effect.
mount -t tmpfs tmpfs "$root/sys/module"
mkdir -p "$root/sys/module/zfs/parameters"
while read -r name _ parameter; do
    case $name:$parameter in [!A-Z]* | *: | *:*[!a-z0-9_]*) continue ;; esac
    echo 0 > "$root/sys/module/zfs/parameters/$parameter"
done < "$suite/usr/share/zfs/zfs-tests/include/tunables.cfg"
cd "$root"
mkdir -p old-root
pivot_root . old-root
umount -l /old-root
rmdir /old-root
ip link set lo up

for name in 0 1 2; do
    truncate -s 4G "/var/tmp/file-vdev$name"
done
useradd -m -d /weir-zts/user weirzts
WEIR_ARC_MAX=512M WEIR_DIRTY_MAX=256M /weir-zts/bin/weir daemon \
    > /weir-zts/log/daemon.out 2> /weir-zts/log/daemon.log < /dev/null &
tries=0
until grep -qx ready /weir-zts/log/daemon.out; do
    tries=$((tries + 1))
    [ "$tries" -lt 600 ] || exit 1
    sleep 0.1
done
echo "room $pid"
while read -r _; do :; done

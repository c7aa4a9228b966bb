#!/usr/bin/env bash
# Makes an emulated machine with the clients of a real Linux kernel, from Debian packages; installs nothing.
#
#   fetch-guest.sh DIR      writes DIR/vmlinuz, DIR/initramfs and DIR/root.img
#
# The machine's own apt sources name the mirror, the keys and the release. apt sees an empty package state, so that it
# fetches the packages with all that they need, whatever this machine has. They are unpacked into a root file system,
# from which an ext4 image is made without root's rights. The initramfs holds busybox and the modules below that image.
# The programs that do this (mke2fs, depmod, busybox) come from the packages too. Ends with exit code 3 and one line if
# there is no network or no Debian source; a complete folder of the same script is kept as it is.
set -euo pipefail

dir=$(realpath -m "${1:?usage: fetch-guest.sh DIR}")
packages=(
    linux-image-cloud-amd64 busybox-static dash coreutils kmod netbase
    nfs-common cifs-utils open-iscsi nbd-client keyutils
    e2fsprogs xfsprogs util-linux mount fio tcc libc6-dev python3-minimal perl-base
)
stamp=$dir/.complete
version=$(sha256sum "$0" | cut -d' ' -f1)

unavailable() { echo "guest not fetched: $*" >&2; exit 3; }

if [ "$(cat "$stamp" 2>/dev/null)" = "$version" ]; then
    echo "already there: $dir"
    exit 0
fi
command -v apt-get >/dev/null && command -v dpkg >/dev/null || unavailable "this machine has no apt"
[ "$(dpkg --print-architecture)" = amd64 ] || unavailable "the guest is for amd64"

mkdir -p "$dir"
work=$(mktemp -d "$dir/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,root}
: >"$work/status"
options=(
    -o "Dir::State::status=$work/status"
    -o "Dir::Cache=$work/cache"
    -o "APT::Install-Recommends=false"
    -o "APT::Sandbox::User=$(id -un)"
    -o "Debug::NoLocking=true"
    -o "Acquire::Retries=3"
    -o "Acquire::http::Timeout=30"
)
# The lists of this machine, if it has any, else lists of our own.
if ! apt-get "${options[@]}" -qq --print-uris install "${packages[@]}" >/dev/null 2>&1; then
    options+=(-o "Dir::State::lists=$work/lists")
    apt-get "${options[@]}" -qq update >"$work/log" 2>&1 || unavailable "apt-get update: $(tail -n1 "$work/log")"
fi
apt-get "${options[@]}" -qq -y --download-only install "${packages[@]}" >"$work/log" 2>&1 ||
    unavailable "apt-get: $(tail -n1 "$work/log")"
root=$work/root
for package in "$work"/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
rm -rf "$work/cache" "$root"/usr/share/{doc,man,locale,lintian,bash-completion,perl,initramfs-tools} \
    "$root"/usr/lib/x86_64-linux-gnu/perl

# Programs of the packages, run with their own libraries.
ours() {
    local program=$1 file=$2
    shift 2
    "$root/lib64/ld-linux-x86-64.so.2" --argv0 "$program" \
        --library-path "$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu" "$root/$file" "$@"
}
kernel=$(basename "$root"/lib/modules/*)
ours depmod bin/kmod -b "$root" "$kernel"
mv "$root/boot/vmlinuz-$kernel" "$dir/vmlinuz"
rm -rf "$root/boot"

mkdir -p "$root"/{dev,proc,sys,run,tmp,mnt,root,judge,var/lib/nfs/sm,var/lib/nfs/sm.bak}
ln -sfn /run "$root/var/run"
printf '%s\n' root:x:0:0:root:/root:/bin/sh daemon:x:1:1::/:/bin/false bin:x:2:2::/:/bin/false \
    _rpc:x:110:65534::/run/rpcbind:/bin/false statd:x:109:65534::/var/lib/nfs:/bin/false user:x:1000:1000::/tmp:/bin/sh \
    nobody:x:65534:65534::/:/bin/false >"$root/etc/passwd"
printf '%s\n' root:x:0: daemon:x:1: bin:x:2: user:x:1000: nogroup:x:65534: >"$root/etc/group"
echo '127.0.0.1 localhost guest' >"$root/etc/hosts"
echo guest >"$root/etc/hostname"
ln -sfn dash "$root/bin/sh"
# Of busybox what the packages lack: last in PATH.
mkdir -p "$root/busybox"
for applet in $("$root/bin/busybox" --list); do ln -sfn /bin/busybox "$root/busybox/$applet"; done

# Modules of the initramfs, each after those that it needs.
initramfs=$work/initramfs
mkdir -p "$initramfs"/{bin,modules,dev,proc,sys,newroot}
cp "$root/bin/busybox" "$initramfs/bin/busybox"
ordered() {
    ours modprobe bin/kmod -d "$root" -S "$kernel" --show-depends "$1" | sed -n 's/^insmod \(\S*\).*/\1/p'
}
for module in virtio_pci virtio_blk; do ordered "$module"; done | awk '!seen[$0]++' >"$work/order"
while read -r file; do
    cp "$file" "$initramfs/modules/"
    basename "$file" >>"$initramfs/modules/order"
done <"$work/order"
cat >"$initramfs/init" <<'INIT'
#!/bin/busybox sh
# Loads the modules below the root file system, mounts it, and starts its init.
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
while read -r module; do $b insmod "/modules/$module"; done </modules/order
tries=0
until [ -b /dev/vda ] || [ $tries = 100 ]; do tries=$((tries + 1)); $b usleep 50000; done
$b mount -t ext4 /dev/vda /newroot || echo "guest: no root file system"
$b mount --move /dev /newroot/dev
$b umount /proc
exec $b switch_root /newroot /sbin/guest-init
INIT
cat >"$root/sbin/guest-init" <<'INIT'
#!/bin/busybox sh
# Unpacks the judge's programs from the second disk and starts its agent, which ends the machine when it ends.
export PATH=/judge:/usr/sbin:/sbin:/usr/bin:/bin:/busybox HOME=/root
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t tmpfs tmp /tmp
$b mount -t tmpfs run /run
$b mount -t tmpfs judge /judge
$b mkdir -p /dev/shm /dev/pts /run/lock /run/rpcbind /run/sendsigs.omit.d
$b mount -t tmpfs shm /dev/shm
$b mount -t devpts pts /dev/pts
$b hostname "$($b sed -n 's/.*guest=\([a-z0-9]*\).*/\1/p' /proc/cmdline)"
for module in virtio_net virtio_console virtio_rng; do modprobe -q $module; done
$b ip link set lo up
tries=0
until [ -e /sys/class/net/eth0 ] || [ $tries = 100 ]; do tries=$((tries + 1)); $b usleep 50000; done
$b ip addr add 10.0.2.15/24 dev eth0
$b ip link set eth0 up
$b ip route add default via 10.0.2.2
$b tar -x -f /dev/vdb -C /judge
WEIR_GUEST_PORT=$(echo /dev/vport*p1)
export WEIR_GUEST_PORT
/judge/agent
echo "guest: the agent has ended"
$b poweroff -f
INIT
chmod +x "$initramfs/init" "$root/sbin/guest-init"
(cd "$initramfs" && find . | "$root/bin/busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$dir/initramfs"

size=$(($(du -sk "$root" | cut -f1) * 5 / 4 + 65536))
rm -f "$dir/root.img"
ours mke2fs sbin/mke2fs -q -t ext4 -O ^has_journal -m 0 -N 32768 -d "$root" "$dir/root.img" "${size}k"
echo "$version" >"$stamp"
echo "kernel $kernel, root file system of $((size >> 10)) MiB: $dir"

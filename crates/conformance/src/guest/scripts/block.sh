# Cases on a block device, whatever connects it: NBD or iSCSI.

# Prints the first SCSI disk with this vendor-independent serial place: the only sd* of this machine.
scsi_disk() {
    tries=0
    until ls /sys/class/scsi_disk/*/device/block >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 200 ]
        usleep 100000
    done
    disk=/dev/$(ls -d /sys/class/scsi_disk/*/device/block/* | head -n 1 | sed 's#.*/##')
    until [ -b "$disk" ]; do usleep 100000; done
    echo "$disk"
}

# Connects with the line that Weir prints.
nbd() {
    modprobe nbd
    "$@"
    [ "$(blockdev --getsize64 /dev/nbd0)" -gt 0 ]
}

# Connects a device that survives restarts of the server.
nbd_persistent() {
    modprobe nbd
    python3 /judge/nbd_persistent.py "$@"
    [ "$(blockdev --getsize64 "/dev/nbd$4")" -gt 0 ]
}

# Logs in with the initiator's own tools: iscsid holds the session.
iscsi() {
    target=$1 portal=$2
    modprobe -a iscsi_tcp sd_mod
    mkdir -p /etc/iscsi /run/lock/iscsi /var/lib/iscsi
    echo InitiatorName=iqn.2026-01.example.weir:guest >/etc/iscsi/initiatorname.iscsi
    pidof iscsid >/dev/null || iscsid
    iscsiadm -m discovery -t sendtargets -p "$portal"
    # Behind address translation the portal has another address than the target says.
    iscsiadm -m node -T "$target" -p "$portal" -o new
    iscsiadm -m node -T "$target" -o update -n node.session.timeo.replacement_timeout -v 300
    if [ -n "${3-}" ]; then
        iscsiadm -m node -T "$target" -o update -n node.session.auth.authmethod -v CHAP
        iscsiadm -m node -T "$target" -o update -n node.session.auth.username -v "$3"
        iscsiadm -m node -T "$target" -o update -n node.session.auth.password -v "$4"
    fi
    iscsiadm -m node -T "$target" -p "$portal" --login
    blockdev --getsize64 "$(scsi_disk)"
}

iscsi_logout() {
    iscsiadm -m node --logoutall=all
}

# mkfs with discard, files, fstrim, and fsck after unmounting: $1 is ext4 or xfs.
file_system() {
    device=$1 kind=$2
    modprobe "$kind"
    blkdiscard "$device"
    case $kind in
    ext4) mkfs.ext4 -q -F "$device" ;;
    xfs) mkfs.xfs -q -f "$device" ;;
    esac
    mkdir -p /mnt/block
    mount -o discard "$device" /mnt/block
    for n in 1 2 3 4; do
        head -c 4000000 /dev/urandom >/tmp/block-$n
        cp /tmp/block-$n /mnt/block/file-$n
    done
    rm /mnt/block/file-2
    fstrim -v /mnt/block
    umount /mnt/block
    blockdev --flushbufs "$device"
    echo 3 >/proc/sys/vm/drop_caches
    case $kind in
    ext4) e2fsck -f -n "$device" ;;
    xfs) xfs_repair -n "$device" ;;
    esac
    mount "$device" /mnt/block
    for n in 1 3 4; do cmp /tmp/block-$n /mnt/block/file-$n; done
    rm /tmp/block-*
    umount /mnt/block
}

# Random writes of random data, direct, several at once, each verified by a checksum afterwards.
verified() {
    fio --name=verified --filename="$1" --size="$2" --rw=randwrite --bsrange=4k-64k --direct=1 --ioengine=libaio \
        --iodepth=8 --verify=crc32c --verify_fatal=1 --do_verify=1 --fdatasync=64 --randseed=7 --minimal >/tmp/fio.log
}

# A discarded area reads as zeros.
discarded() {
    head -c 1048576 /dev/urandom >/tmp/discarded
    dd if=/tmp/discarded of="$1" bs=1M oflag=direct conv=fsync status=none
    blkdiscard -o 0 -l 1048576 "$1"
    dd if="$1" bs=1M count=1 iflag=direct status=none | cmp -n 1048576 - /dev/zero
    [ "$(cat /sys/block/"${1#/dev/}"/queue/discard_max_bytes)" -gt 0 ]
}

# A new ext4 at /mnt/NAME for the agent's writer.
place() {
    mkfs.ext4 -q -F "$1"
    mkdir -p "$2"
    mount "$1" "$2"
}

# Unmounts, empties the caches, checks, mounts again.
again() {
    umount "$2"
    blockdev --flushbufs "$1"
    echo 3 >/proc/sys/vm/drop_caches
    e2fsck -f -n "$1"
    mount "$1" "$2"
}

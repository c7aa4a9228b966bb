# Cases over SMB: /mnt/smb is a mount by cifs.ko.

# smb PORT SHARE USER VERSION [OPTION…]
smb_mounted() {
    modprobe -a cifs
    mkdir -p /mnt/smb
    mount -t cifs -o "port=$1,vers=$4,credentials=/tmp/smb-credentials${5:+,$5}" "//10.0.2.2/$2" /mnt/smb
    grep " /mnt/smb cifs .*vers=$4" /proc/mounts
}

smb_files() {
    mkdir -p "/mnt/smb/open/of-$1"
    for size in 0 1 4097 1048577 8388608; do
        head -c $size /dev/urandom >/tmp/smb-$size
        cp /tmp/smb-$size "/mnt/smb/open/of-$1/file-$size"
    done
    sync
    echo 3 >/proc/sys/vm/drop_caches
    for size in 0 1 4097 1048577 8388608; do
        cmp /tmp/smb-$size "/mnt/smb/open/of-$1/file-$size"
        rm /tmp/smb-$size
    done
    mv "/mnt/smb/open/of-$1/file-1" "/mnt/smb/open/of-$1/moved"
    [ "$(ls "/mnt/smb/open/of-$1" | wc -l)" = 5 ]
    rm -r "/mnt/smb/open/of-$1"
}

smb_fsx() {
    /judge/fsx -f /judge/fsx.toml -P /tmp -S 3 -N "$1" /mnt/smb/open/fsx
}

smb_unmounted() {
    umount /mnt/smb
}

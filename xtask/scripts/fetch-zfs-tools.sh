#!/usr/bin/env bash
# Unpacks OpenZFS's own user-space tools (zdb, ztest, zstream, raidz_test, zhack and the zfs-test package) into the
# folder named by the first argument, without installing anything.
#
#   fetch-zfs-tools.sh DIR [--peer]      --peer fetches zfs-fuse (Sun's ZFS in user space) into DIR as well
#
# Debian carries OpenZFS in the component `contrib` of the backports suite of the release. The mirror, and the
# trusted keys all come from the machine's own apt sources, so nothing here names a host. apt gets lists and a cache
# of its own, so the machine's package state is left alone. Ends with exit code 3 and one line when no network or no
# Debian source is there; a folder that is already complete is kept as it is.
set -euo pipefail

dir=${1:?usage: fetch-zfs-tools.sh DIR [--peer]}
peer=${2:-}
tools=(zfsutils-linux zfs-test libzpool6linux libzfs6linux libnvpair3linux libuutil3linux)
stamp="$dir/.complete"
stamp_peer="$dir/.complete-peer"

unavailable() { echo "OpenZFS tools not fetched: $*" >&2; exit 3; }

# Lets zdb end when it has said all. On its way out it empties its cache, and waits for each block that it had read ahead
# to be six seconds old (`arc_min_prescient_prefetch` in arc.c), asking all the while: that is 98 of 100 parts of what it
# costs with a small pool, and none of what it finds. `kernel_fini`, called last of all, does nothing instead; what zdb
# prints and its exit code stay. Where there is no C compiler, zdb stays as it came.
quicken() {
    local zdb=$dir/sbin/zdb library=$dir/lib/kernel_fini.so
    [ -e "$zdb" ] && [ ! -e "$zdb.openzfs" ] && command -v cc >/dev/null || return 0
    echo 'void kernel_fini(void) {}' | cc -shared -fPIC -x c - -o "$library" || return 0
    mv "$zdb" "$zdb.openzfs"
    printf '%s\n' '#!/bin/sh' 'LD_PRELOAD=${0%/*}/../lib/kernel_fini.so exec "$0.openzfs" "$@"' >"$zdb"
    chmod +x "$zdb"
}

wanted=()
[ -e "$stamp" ] || wanted+=(tools)
[ "$peer" != --peer ] || [ -e "$stamp_peer" ] || wanted+=(peer)
[ ${#wanted[@]} -gt 0 ] || { quicken; echo "already there: $dir"; exit 0; }

command -v apt-get >/dev/null && command -v dpkg >/dev/null || unavailable "this machine has no apt"
. /etc/os-release
release=${VERSION_CODENAME:-}
[ -n "$release" ] || unavailable "the release of this machine has no code name"

# The first source that serves this release and has the component `main` of Debian itself.
source_line=$(apt-get indextargets --format '$(SITE)|$(RELEASE)|$(COMPONENT)' 2>/dev/null |
    awk -F'|' -v r="$release" '$2 == r && $3 == "main" { print; exit }')
[ -n "$source_line" ] || unavailable "no apt source serves $release main"
uri=${source_line%%|*}

mkdir -p "$dir"
apt_home=$(mktemp -d)
trap 'rm -rf "$apt_home"' EXIT
mkdir -p "$apt_home"/{lists/partial,cache/archives/partial,deb}
{
    echo "deb $uri $release main"
    echo "deb $uri $release-backports main contrib"
} >"$apt_home/sources.list"
options=(
    -o "Dir::Etc::sourcelist=$apt_home/sources.list"
    -o "Dir::Etc::sourceparts=/dev/null"
    -o "Dir::State::lists=$apt_home/lists"
    -o "Dir::Cache=$apt_home/cache"
    -o "APT::Sandbox::User=root"
    -o "Acquire::Retries=3"
    -o "Acquire::http::Timeout=30"
)
apt-get "${options[@]}" -qq update >"$apt_home/log" 2>&1 || unavailable "apt-get update failed: $(tail -n1 "$apt_home/log")"

# Unpacks each named package into the folder.
unpack() {
    (cd "$apt_home/deb" && apt-get "${options[@]}" -qq download "$@" >"$apt_home/log" 2>&1) ||
        unavailable "apt-get download failed: $(tail -n1 "$apt_home/log")"
    local package
    for package in "$apt_home"/deb/*.deb; do dpkg -x "$package" "$dir"; done
    rm -f "$apt_home"/deb/*.deb
}

for what in "${wanted[@]}"; do
    case $what in
    tools)
        unpack $(printf "%s/$release-backports " "${tools[@]}")
        quicken
        touch "$stamp"
        ;;
    peer)
        # Apart, since it brings a zdb of its own that must not shadow OpenZFS's.
        main_dir=$dir
        dir=$dir/peer
        mkdir -p "$dir"
        unpack zfs-fuse libfuse2
        dir=$main_dir
        touch "$stamp_peer"
        ;;
    esac
done
echo "unpacked into $dir"

# A fresh Debian root: five commands to the first share. Runs as root in namespaces of its own; prints `first share works`.
ip link set lo up
mkdir -p /srv/weir
cd /srv/weir

# 1: install. systemd would start the service now; a root without it starts it by hand.
apt-get -qq install -y --no-install-recommends /weir.deb >/tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
rm /tmp/install.log
id weir >/dev/null
has_daemon=
if weir daemon --help >/dev/null 2>&1; then
    has_daemon=yes
    weir daemon >/tmp/daemon.log 2>&1 &
    tries=0
    until weir daemon status >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { cat /tmp/daemon.log; exit 1; }
        sleep 0.1
    done
fi
# Without the daemon commands need the place of pools.
[ -n "$has_daemon" ] || export WEIR_POOL_DIRS=/srv/weir
# 2: a disk; here a file.
truncate -s 1G disk
# 3: a pool.
weir zpool create tank /srv/weir/disk
# 4: a shared file system.
weir zfs create -o sharenfs=rw,no_root_squash tank/home
# 5: without the daemon, serve it.
if [ -z "$has_daemon" ]; then
    weir serve -d /srv/weir --no-root-squash tank >/tmp/serve.log 2>&1 &
    tries=0
    until grep -q '^ready' /tmp/serve.log; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { cat /tmp/serve.log; exit 1; }
        sleep 0.1
    done
fi

# A client writes a file and reads it.
url="nfs://127.0.0.1/tank/home"
ports="nfsport=2049&mountport=2049"
echo hello >/tmp/hello
nfs-cp /tmp/hello "$url/hello?$ports" >/dev/null
[ "$(nfs-cat "$url/hello?$ports")" = hello ]
weir zpool export tank
[ -z "$has_daemon" ] || weir daemon stop
wait
rm -f /tmp/hello /tmp/serve.log /tmp/daemon.log
echo "first share works"

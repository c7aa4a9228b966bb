getent group weir >/dev/null || groupadd -r weir
getent passwd weir >/dev/null || useradd -r -g weir -d /var/lib/weir -s /sbin/nologin -c "Weir storage server" weir

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    # 1: an upgrade; clients wait for the new process.
    if [ "$1" = 1 ]; then systemctl try-restart weir.service weir-rootless.service || :; fi
fi

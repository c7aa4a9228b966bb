# 0: removal, not an upgrade.
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now weir.service weir-rootless.service || :
fi

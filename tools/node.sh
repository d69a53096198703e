#!/bin/sh
# node.sh: install Node.js, for pyright and for the tests of the page, if it is missing and can be installed.
set -eu
if command -v node >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no Node.js on the PATH: installing Debian's"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs >/dev/null
else
    echo "no Node.js on the PATH: install it; pyright and the tests of the page need it" >&2
fi

#!/bin/sh
# wrk.sh: install wrk for the benchmarks if it is missing and can be installed.
set -eu
if command -v wrk >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no wrk on the PATH: installing Debian's"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends wrk >/dev/null
fi # otherwise the benchmarks say how to install it

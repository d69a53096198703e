#!/bin/sh
# wrk.sh: see to it that there is a wrk for the benchmarks, where this machine lets us install one.
set -eu
if command -v wrk >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no wrk on the PATH: installing Debian's"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends wrk >/dev/null
fi # otherwise the benchmarks say how to get one

#!/bin/sh
# prometheus.sh: install Prometheus and its promtool for the tests if they are missing and can be installed.
set -eu
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no prometheus on the PATH: installing Debian's"
    apt-get update -qq
    # at run level 1, the package does not start its service
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null
fi # otherwise the tests say how to install it

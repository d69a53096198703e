#!/bin/sh
# nginx.sh: install nginx for the tests of forward-auth if it is missing and can be installed.
set -eu
if command -v nginx >/dev/null || [ -x /usr/sbin/nginx ]; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no nginx on the PATH: installing Debian's"
    apt-get update -qq
    # at run level 1, the package does not start its service
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nginx >/dev/null
else
    echo "no nginx on the PATH: the tests of forward-auth will fail and say how to install it" >&2
fi

#!/bin/sh
# browser.sh: install Chromium and Node.js for the tests of the page if they are missing and can be installed.
set -eu
missing=''
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ||
    missing='chromium'
command -v node >/dev/null || missing="$missing nodejs"
if [ -z "$missing" ]; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "missing on the PATH: installing Debian's packages: $missing"
    apt-get update -qq
    # shellcheck disable=SC2086  # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "missing on the PATH: $missing; the tests of the page will fail and say how to install it" >&2
fi

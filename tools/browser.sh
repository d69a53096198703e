#!/bin/sh
# browser.sh: install Chromium and Node.js for the tests of the page if they are missing and can be installed.
set -eu
"$(dirname "$0")/node.sh"
for name in chromium chromium-browser google-chrome; do
    if command -v $name >/dev/null; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no Chromium on the PATH: installing Debian's"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
else
    echo "no Chromium on the PATH: install it; the tests of the page will fail and say how" >&2
fi

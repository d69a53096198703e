#!/bin/sh
# shells.sh: install zsh and fish for the tests of completion if they are missing and can be installed.
set -eu
if command -v zsh >/dev/null && command -v fish >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no zsh or no fish on the PATH: installing Debian's"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends zsh fish >/dev/null
else
    echo "no zsh or no fish on the PATH: install them; the tests of completion will fail and say how" >&2
fi

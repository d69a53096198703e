#!/bin/sh
# venv.sh DIR WHAT [PACKAGE...]: create the virtual environment DIR with $PYTHON (default: python3 or, if that is
# too old, the newest of python3.10 to python3.13) and install WHAT (such as '.[dev]') into it, editable, and the
# newest releases of the packages.
set -eu
dir=$1 what=$2
shift 2
upgrade=${1:+--upgrade}
export PIP_DISABLE_PIP_VERSION_CHECK=1

works() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

find_python() {
    python=${PYTHON:-python3}
    if works "$python"; then return; fi
    if [ "$python" = python3 ]; then # the default, not the user's choice: look further
        for python in python3.13 python3.12 python3.11 python3.10; do
            if works "$python"; then return; fi
        done
        python="python3, or python3.10 to python3.13,"
    fi
    echo "ratekeeper needs Python 3.10 or newer; $python is missing, too old or does not run." \
        "Choose one: make PYTHON=/path/to/python3.12" >&2
    exit 1
}

# Debian and Ubuntu have ensurepip, which venv needs to install pip, in a separate package.
need_ensurepip() {
    if "$python" -c 'import ensurepip' 2>/dev/null; then return; fi
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "$python has no ensurepip: installing $package"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
    else
        echo "$python cannot create virtual environments: its ensurepip module is missing." \
            "On Debian and Ubuntu: sudo apt-get install $package" >&2
        exit 1
    fi
}

echo "installing $what $* into $dir"
if command -v uv >/dev/null; then
    if ! works "$dir/bin/python"; then
        find_python
        uv venv --quiet --clear --seed --python "$python" "$dir"
    fi
    # shellcheck disable=SC2086  # one option or none
    uv pip install --quiet $upgrade --python "$dir/bin/python" --editable "$what" "$@"
else
    if ! works "$dir/bin/python"; then
        find_python
        need_ensurepip
        "$python" -m venv --clear "$dir"
    fi
    # shellcheck disable=SC2086  # as above
    "$dir/bin/python" -m pip install --quiet $upgrade --editable "$what" "$@"
fi

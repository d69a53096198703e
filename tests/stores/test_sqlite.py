"""The SQLite store: sharing between processes, files that cannot be used, forks, paths and URLs."""

import asyncio
import contextlib
import fcntl
import gc
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from ratekeeper import AsyncLimiter, FixedWindow, InvalidRule, Limiter, SlidingWindowLog, StoreUnavailable, TokenBucket
from ratekeeper.stores import SqliteStore, from_url
from ratekeeper.testing import ManualClock
from tests import inside
from tests.faces import FACES
from tests.waiters import until, untraced

RULE = FixedWindow(10, 86_400)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "limits.db"


@pytest.fixture(params=FACES.values(), ids=FACES)
def face(request):
    return request.param


def rows(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name, state FROM keys ORDER BY name").fetchall()


def python(code, *arguments):
    """Start a process that runs the given code."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1] + "-lock", "ab")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def held(path):
    """Let another process hold the lock and do nothing else."""
    holder = python(HOLDER, path)
    try:
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.communicate()


def back_within(limiter, seconds=15):
    """Return whether the store decides again in time: ten times the promise, to tell an answer from a hang."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if not limiter.peek("k").degraded:
            return True
        time.sleep(0.01)
    return False


# What is shared.


def test_both_limiters_count_together_on_one_store_and_wait_in_one_queue(path):
    store = SqliteStore(path)
    limiter, asynchronous = Limiter(RULE, store), AsyncLimiter(RULE, store)
    assert limiter.hit("k", 4).remaining == 6
    assert asyncio.run(asynchronous.hit("k", 4)).remaining == 2
    assert limiter.peek("k").remaining == 2
    assert inside.queues(limiter) is inside.queues(asynchronous)
    store.close()


def test_the_same_url_given_twice_shares_one_count(path):
    with Limiter(RULE, f"sqlite:///{path}") as one, Limiter(RULE, f"sqlite:///{path}") as other:
        assert one.store is not other.store
        assert [one.hit("k").remaining, other.hit("k").remaining, one.hit("k").remaining] == [9, 8, 7]


def test_usage_survives_a_restart_and_closing_leaves_a_single_file(path, face):
    limiter = face(RULE, f"sqlite:///{path}")
    limiter.hit("k", 3)
    limiter.close()
    assert sorted(each.name for each in path.parent.iterdir()) == ["limits.db", "limits.db-lock"]
    again = face(RULE, f"sqlite:///{path}")
    assert again.hit("k").remaining == 6
    again.close()


def test_workers_that_share_a_file_admit_the_limit_together(path):
    code = """
import sys
from ratekeeper import FixedWindow, Limiter
limiter = Limiter(FixedWindow(100, 86_400), "sqlite:///" + sys.argv[1], on_error="raise", deadline=30)
print(sum(limiter.hit("k").allowed for _ in range(60)))
"""
    workers = [python(code, path) for _ in range(3)]
    assert sum(int(worker.communicate()[0]) for worker in workers) == 100


def test_a_closed_store_opens_again(path):
    limiter = Limiter(RULE, SqliteStore(path))
    limiter.hit("k")
    limiter.store.close()
    limiter.store.close()
    assert limiter.hit("k").remaining == 8
    limiter.store.close()


def test_a_store_that_is_dropped_closes_its_file(path):
    limiter = Limiter(RULE, SqliteStore(path))
    limiter.hit("k")
    del limiter
    gc.collect()
    assert not Path(f"{path}-wal").exists()


KEYS = ["1", b"1", 1, -1, ("1",), (b"1",), (1,), ("1", "2"), ("1,2",), "%i1", "{1}", ("1", ("2")), "a b", "a:b", "é"]


def test_different_keys_prefixes_names_and_algorithms_never_share_usage(path):
    store = SqliteStore(path)
    bindings = [("p", "n"), ("p:n", ""), ("p", "n:{"), ("pn", "x"), ("", "pn")]
    limiters = [Limiter({name or "y": RULE}, store, prefix=prefix) for prefix, name in bindings]
    limiters += [Limiter({"n": TokenBucket(10, 1)}, store, prefix="p"), Limiter(RULE, store)]
    for number, limiter in enumerate(limiters):
        for key in KEYS[:-4] if number else KEYS:
            assert limiter.hit(key, 10).remaining == 0, (number, key)
    store.close()


# What is stored.


def test_an_inspection_shows_the_state_in_words_and_as_it_is_stored(path):
    clock = ManualClock(1_700_000_000)
    store = SqliteStore(path)
    limiter = Limiter({"user": TokenBucket(10, 1), "log": SlidingWindowLog(5, 60)}, store, clock=clock)
    untouched = limiter.inspect("k")["user"]
    assert (untouched.raw, untouched.ttl, untouched.bytes) == (None, None, 0)
    limiter.hit("k", 3)
    bucket, log = limiter.inspect("k").values()
    assert (bucket.raw, bucket.state["tokens"], bucket.ttl) == ("3000000 1700000000000000 1000000", 7.0, 3.0)
    assert bucket.name == "ratekeeper:tb:user:{k}"
    assert isinstance(log.raw, bytes)
    assert 0 < bucket.bytes < log.bytes
    assert [name for name, _ in rows(path)] == [b"ratekeeper:sl:log:{k}", b"ratekeeper:tb:user:{k}"]
    store.close()


def test_denials_peeks_and_resets_leave_nothing_in_the_file(path):
    limiter = Limiter({"a": FixedWindow(5, 60), "b": FixedWindow(1, 60)}, SqliteStore(path))
    assert not limiter.hit("k", {"a": 2, "b": 2})
    limiter.peek("k")
    limiter.refund("k")
    assert rows(path) == []
    assert limiter.hit("k")
    assert len(rows(path)) == 2
    limiter.reset("k")
    assert rows(path) == []
    limiter.store.close()


def test_a_hit_that_does_not_bind_is_charged_only_if_it_fits(path):
    limiter = Limiter({"a": FixedWindow(5, 60), "b": FixedWindow(1, 60)}, SqliteStore(path))
    demands = inside.demands(limiter, "k", {"a": 2, "b": 2})
    outcome = limiter.store.execute([demands[0], demands[1]._replace(binds=False)])
    assert [answer[:2] for answer in outcome.answers] == [(True, 3), (False, 1)]
    limiter.store.close()


def test_a_cost_that_was_corrected_upwards_is_given_back_in_full(path):
    limiter = Limiter(RULE, SqliteStore(path))
    taken = limiter.take("k", 2)
    taken.correct(5)
    assert limiter.peek("k").remaining == 5
    taken.give_back()
    assert limiter.peek("k").remaining == 10
    limiter.store.close()


def test_expired_keys_are_removed_a_few_at_a_time(path):
    clock = ManualClock()
    limiter = Limiter(FixedWindow(5, 60), SqliteStore(path), clock=clock)
    for number in range(100):
        limiter.hit(f"old:{number}")
    clock.advance(61)
    left = []
    for number in range(40):
        limiter.hit(f"new:{number}")
        left.append(sum(b"old" in name for name, _ in rows(path)))
    assert left[0] >= 80
    assert max(before - after for before, after in itertools.pairwise(left)) <= 10
    assert left[-1] == 0
    limiter.store.close()


def test_an_expired_key_that_is_used_again_stays(path):
    clock = ManualClock()
    limiter = Limiter(FixedWindow(5, 60), SqliteStore(path), clock=clock)
    for _ in range(5):
        limiter.hit("k")
        clock.advance(60)
        assert limiter.hit("k").remaining == 4
        assert limiter.hit("k").remaining == 3
        assert limiter.hit("another").remaining == 4
        assert limiter.peek("k").remaining == 3
        clock.advance(60)
    limiter.store.close()


def test_a_flood_of_denials_removes_expired_keys_too(path):
    clock = ManualClock()
    limiter = Limiter({"r": FixedWindow(1, 60)}, SqliteStore(path), clock=clock)
    for number in range(20):
        limiter.hit(f"old:{number}")
    clock.advance(61)
    for _ in range(10):
        assert not limiter.hit("k", 2)
    assert rows(path) == []
    limiter.store.close()


@pytest.mark.parametrize(
    ("rule", "state"),
    [(RULE, "nonsense"), (RULE, "1 2"), (TokenBucket(10, 1), "5 5 0"), (SlidingWindowLog(10, 60), b"12345678")],
)
def test_an_unreadable_state_is_reported_and_other_keys_still_work(path, rule, state):
    limiter = Limiter({"r": rule}, SqliteStore(path), on_error="raise")
    limiter.hit("k")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE keys SET state = ?", (state,))
        connection.commit()
    with pytest.raises(StoreUnavailable, match=f"holds no state of a {rule.algorithm}"):
        limiter.hit("k")
    assert not limiter.store.is_away
    assert limiter.hit("another")
    limiter.store.close()


# A store that is away.


def _directory(path):
    path.mkdir()


def _missing(path):
    path.parent.rmdir()


def _garbage(path):
    path.write_bytes(b"no database " * 1000)


def _foreign(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")


def _newer(path):
    with contextlib.closing(SqliteStore(path)) as store:
        Limiter(RULE, store).hit("k")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 9")


def _damaged(path):
    with contextlib.closing(SqliteStore(path)) as store:
        for number in range(500):
            Limiter(RULE, store).hit(f"{number}")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)


def repair(path):
    """Repair whatever makes the file unusable."""
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_directory, "unable to open"),
        (_missing, "No such file"),
        (_garbage, "not a database"),
        (_foreign, "of another application"),
        (_newer, "of another version of ratekeeper"),
        (_damaged, "malformed"),
    ],
)
def test_the_store_is_away_until_an_unusable_file_is_repaired(tmp_path, face, spoil, complaint):
    path = tmp_path / "folder" / "limits.db"
    path.parent.mkdir()
    spoil(path)
    strict = Limiter(RULE, SqliteStore(path), on_error="raise")
    with pytest.raises(StoreUnavailable, match=complaint):
        strict.hit("k")
    limiter = face(RULE, SqliteStore(path))
    assert [limiter.hit("k").degraded for _ in range(3)] == [True] * 3
    assert limiter.store.is_away
    repair(path)
    assert back_within(limiter)
    assert limiter.hit("k").remaining == 9
    limiter.store.close()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system in which nothing can be created")
def test_the_store_is_away_where_no_lock_can_be_created():
    limiter = Limiter(RULE, SqliteStore("/proc/self/limits.db"), on_error="closed")
    decision = limiter.hit("k")
    assert decision.degraded
    assert not decision


READ_ONLY = """
import os, sys
from ratekeeper import FixedWindow, Limiter
from tests import inside
limiter = Limiter(FixedWindow(10, 86_400), "sqlite:///" + sys.argv[1], on_error="raise", deadline=5)
if os.getuid() == 0:
    os.setuid(65_534)  # for root, no file is read-only
strict = limiter
limiter = Limiter(strict.rules, strict.store, deadline=5)
try:
    strict.hit("k")
except Exception as error:
    print(error)
answers = []
for call in (limiter.peek, limiter.hit, limiter.peek):
    inside.second_passed(limiter.store)
    answers.append(call("k").degraded)
print(*answers, limiter.store.breaker.openings, flush=True)
sys.stdin.readline()
inside.second_passed(limiter.store)
print(limiter.hit("k").remaining)
"""


def test_the_store_is_away_while_its_file_is_read_only():
    with tempfile.TemporaryDirectory(prefix="ratekeeper-") as folder:  # which other users may enter
        path = Path(folder, "limits.db")
        with contextlib.closing(SqliteStore(path)) as store:
            Limiter(RULE, store).hit("k", 4)
        Path(folder).chmod(0o777)
        Path(f"{path}-lock").chmod(0o666)
        path.chmod(0o444)
        program = python(READ_ONLY, path)
        assert "attempt to write a readonly database" in program.stdout.readline()
        assert program.stdout.readline().split() == ["True", "True", "True", "1"]
        for file in Path(folder).iterdir():  # SQLite makes its log with the same permissions
            file.chmod(0o666)
        assert program.communicate("\n")[0] == "5\n"


FULL = """
import resource, sys, time
from ratekeeper import FixedWindow, Limiter
limiter = Limiter(FixedWindow(10, 86_400), "sqlite:///" + sys.argv[1], on_error="local", deadline=5)
limiter.hit("k")
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
number = 0
while not limiter.hit(f"key:{number}").degraded:
    number += 1
    assert number < 100_000
print("full")
assert limiter.hit("k").remaining == 9  # as this process has counted since then
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ends = time.monotonic() + 15
while limiter.peek("k").degraded and time.monotonic() < ends:
    time.sleep(0.01)
print(limiter.hit("k").remaining, limiter.peek(f"key:{number - 1}").remaining)
"""


def test_on_a_full_disk_the_store_is_away_and_loses_nothing(path):
    assert python(FULL, path).communicate()[0].split() == ["full", "8", "9"]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


ALTERNATES = """
import resource, sys
from ratekeeper import FixedWindow, Limiter
from tests import inside
limiter = Limiter(FixedWindow(10, 86_400), "sqlite:///" + sys.argv[1], on_error="local", deadline=5)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
number = 0
while not limiter.hit(f"key:{number}").degraded:
    number += 1
answers = []
for number in range(number, number + 20):
    for call in (limiter.peek, limiter.hit):
        inside.second_passed(limiter.store)
        answers.append(call(f"key:{number}").degraded)
print(all(answers), limiter.store.breaker.openings)
"""


def test_reads_do_not_tell_that_a_full_disk_has_room_again(path):
    assert python(ALTERNATES, path).communicate()[0].split() == ["True", "1"]


def test_the_store_is_away_while_a_stuck_process_holds_the_lock(path, face):
    limiter = face(RULE, SqliteStore(path), deadline=0.1)
    limiter.hit("k", 5)
    with held(path):
        time.sleep(0.05)  # until the stamp of our own turn is old
        began = time.monotonic()
        decisions = [limiter.hit("k") for _ in range(200)]
        assert all(decision.degraded for decision in decisions)
        assert time.monotonic() - began < 10  # one caller a second waits, and the others do not
        assert limiter.store.is_away
    assert back_within(limiter)
    assert limiter.hit("k").remaining == 4
    limiter.store.close()


def test_the_store_is_away_while_another_program_locks_the_database(path):
    limiter = Limiter(RULE, SqliteStore(path), on_error="raise", deadline=0.05)
    limiter.hit("k")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked by another program"):
            limiter.hit("k")
        assert limiter.store.is_away
    inside.second_passed(limiter.store)
    assert limiter.hit("k").remaining == 8
    limiter.store.close()


def test_waiting_too_long_for_others_does_not_mark_the_store_as_away(path):
    limiter = Limiter(RULE, SqliteStore(path), on_error="raise", deadline=0.05)
    limiter.hit("k")
    lock = os.open(f"{path}-lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.pwrite(lock, (time.monotonic_ns() + 10**11).to_bytes(8, "big"), 0)  # as if other processes used it meanwhile
        with pytest.raises(StoreUnavailable, match="in use by others") as caught:
            limiter.hit("k")
    finally:
        os.close(lock)
    assert not caught.value.away
    assert not limiter.store.is_away
    assert limiter.hit("k")
    limiter.store.close()


def test_removed_files_are_created_again_within_a_second(path):
    one, other = (Limiter(RULE, SqliteStore(path), deadline=5) for _ in range(2))
    one.hit("k")
    other.hit("k")
    for file in path.parent.iterdir():
        file.unlink()
    time.sleep(1.01)
    assert [one.hit("k").remaining, other.hit("k").remaining, one.hit("k").remaining] == [9, 8, 7]
    one.store.close()
    other.store.close()


# Closing.


@pytest.fixture
def wal(path):
    """The file that the last process to close the database folds into it and removes."""
    return Path(f"{path}-wal")


def test_a_store_that_is_closed_while_another_process_holds_the_lock_leaves_its_file_open(path, wal, face):
    limiter = face(RULE, f"sqlite:///{path}")
    limiter.hit("k")
    with held(path):
        limiter.close()
        assert wal.exists()
    assert limiter.hit("k").remaining == 8
    limiter.close()
    assert not wal.exists()


def test_a_store_that_is_dropped_while_another_process_holds_the_lock_is_closed_with_the_next(path, wal, tmp_path):
    limiter = Limiter(RULE, SqliteStore(path))
    limiter.hit("k")
    with held(path):
        del limiter
        gc.collect()
        assert wal.exists()
    SqliteStore(tmp_path / "another.db")
    gc.collect()
    assert not wal.exists()


ENDS = """
import sys
from ratekeeper import FixedWindow, Limiter
limiter = Limiter(FixedWindow(10, 86_400), "sqlite:///" + sys.argv[1], on_error="raise", deadline=30)
limiter.hit("k")
print("open", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_ends_while_another_holds_the_lock_leaves_the_file_to_it(path, wal):
    ending = python(ENDS, path)
    assert ending.stdout.readline() == "open\n"
    with held(path):
        ending.communicate("\n")
        assert ending.returncode == 0
        assert wal.exists()
    limiter = Limiter(RULE, SqliteStore(path))
    assert limiter.hit("k").remaining == 8
    limiter.store.close()
    assert not wal.exists()


def test_an_event_loop_goes_on_while_a_store_is_closed(path):
    async def main():
        limiter = AsyncLimiter(RULE, f"sqlite:///{path}")
        await limiter.hit("k")
        with held(path):
            closing = asyncio.create_task(limiter.close())
            turns = 0
            while not closing.done():
                await asyncio.sleep(0)
                turns += 1
        limiter.store.close()
        return turns

    assert asyncio.run(main()) > 10


# Waiting for the lock.


def test_a_task_that_waits_for_the_lock_lets_others_run_and_leaves_nothing_if_cancelled(path):
    async def main():
        limiter = AsyncLimiter(RULE, SqliteStore(path), on_error="raise", deadline=60)
        await limiter.hit("k")
        with held(path):
            waiting = [asyncio.create_task(limiter.hit("k")) for _ in range(3)]
            await asyncio.sleep(0.05)  # the loop goes on
            assert not any(task.done() for task in waiting)
            waiting[0].cancel()
        decisions = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(decisions[0], asyncio.CancelledError)
        remaining = (await limiter.peek("k")).remaining
        limiter.store.close()
        return remaining

    assert asyncio.run(main()) == 7


def test_a_free_lock_is_taken_without_yielding_to_the_loop(path):
    async def main():
        limiter = AsyncLimiter(RULE, SqliteStore(path))
        coming = limiter.hit("k")
        with pytest.raises(StopIteration) as ended:
            coming.send(None)
        limiter.store.close()
        return ended.value.value

    assert asyncio.run(main()).remaining == 9


def test_threads_of_one_process_admit_the_limit(path):
    limiter = Limiter(FixedWindow(200, 86_400), SqliteStore(path), on_error="raise", deadline=30)
    admitted = []

    def work():
        admitted.extend(limiter.hit("k").allowed for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(admitted), sum(admitted)) == (400, 200)
    limiter.store.close()


def test_an_interrupted_caller_leaves_neither_the_lock_nor_a_transaction(path):
    rules = {"a": FixedWindow(10**6, 86_400), "b": FixedWindow(10**6, 86_400)}
    limiter = Limiter(rules, SqliteStore(path), on_error="raise", deadline=10)
    other = Limiter(rules, SqliteStore(path), on_error="raise", deadline=10)

    class Alarm(Exception):
        pass

    def interrupt(_, frame):
        if frame is not None and "ratekeeper" in frame.f_code.co_filename:
            raise Alarm

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = admitted = 0
    try:
        with untraced():
            signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
            for _ in range(4_000):
                try:
                    admitted += limiter.hit("k").allowed
                except Alarm:
                    interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    layers = other.hit("k").layers  # in time: no process holds the lock
    used = {10**6 - layer.remaining - 1 for layer in layers.values()}
    assert len(used) == 1
    assert admitted <= used.pop() <= admitted + interrupted
    limiter.store.close()
    other.store.close()


# Forks.


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_children_forked_from_busy_threads_open_the_file_themselves(path):
    limiter = Limiter(FixedWindow(10**6, 86_400), SqliteStore(path), on_error="raise", deadline=20)
    running = True
    decided = [0] * 3

    def hammer(number):
        while running:
            limiter.hit("parent")
            decided[number] += 1

    threads = [threading.Thread(target=hammer, args=(number,), daemon=True) for number in range(3)]
    with untraced():
        for thread in threads:
            thread.start()
        until(lambda: all(decided), "all threads are at work")
        failed = 0
        try:
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    os._exit(0 if limiter.hit("child").allowed else 1)
                failed += os.waitpid(child, 0)[1] != 0
        finally:
            running = False
            for thread in threads:
                thread.join()
    assert failed == 0
    assert limiter.peek("child").remaining == 10**6 - 20
    assert limiter.peek("parent").remaining == 10**6 - sum(decided)
    limiter.store.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_file_is_closed_at_a_fork_and_a_child_that_inherits_it_open_does_not_use_it(path):
    limiter = Limiter(RULE, SqliteStore(path), on_error="raise")
    limiter.hit("k")
    access = inside.file_access(limiter.store)
    access.before_fork()
    assert not Path(f"{path}-wal").exists()
    with pytest.raises(StoreUnavailable):
        limiter.hit("k")  # until the child exists
    access.after_fork_in_parent()
    limiter.hit("k")
    access.after_fork()  # as if a server had forked without telling Python
    with pytest.raises(StoreUnavailable, match="when this process was forked"):
        limiter.hit("k")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_while_another_process_holds_the_lock_leaves_the_file_to_the_parent(path, wal):
    limiter = Limiter(RULE, SqliteStore(path), on_error="raise")
    limiter.hit("k")
    released, release = os.pipe()
    with held(path):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os.read(released, 1)
            try:
                limiter.hit("k")
            except StoreUnavailable as error:
                os._exit(0 if "when this process was forked" in str(error) else 1)
            os._exit(2)
        assert wal.exists()
    os.write(release, b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert limiter.hit("k").remaining == 8
    limiter.store.close()


# Paths and URLs.


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite://{}", "async+sqlite:///{}"])
def test_the_path_in_a_url_is_absolute(path, url):
    store = from_url(url.format(path))
    assert Path(store.path) == path
    assert repr(store) == f"SqliteStore({store.path!r})"


def test_a_url_may_have_percent_codes(tmp_path):
    assert from_url(f"sqlite://{tmp_path}/100%25%20of%3F.db").path == f"{tmp_path}/100% of?.db"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("sqlite://", "does not name a file"),
        ("sqlite:///", "does not name a file"),
        ("sqlite:////", "does not name a file"),
        ("sqlite:///a/folder/", "does not name a file"),
        ("sqlite://host/limits.db", "names a host, but a file has none"),
        ("sqlite://limits.db", "names a host"),
        ("sqlite:///limits.db", r"the root directory.*SqliteStore\('limits.db'\)"),
        ("sqlite:///a/b.db?mode=ro", "has options, but a file takes none"),
        ("sqlite:///a/b.db#x", "has options"),
        ("sqlite:///:memory:", "use 'memory://'"),
        ("sqlite://:memory:", "use 'memory://'"),
    ],
)
def test_a_url_that_names_no_file_is_refused(url, complaint):
    with pytest.raises(InvalidRule, match=complaint):
        from_url(url)


@pytest.mark.parametrize("path", ["", ":memory:", "a\0b"])
def test_a_path_that_names_no_file_is_refused(path):
    with pytest.raises(InvalidRule, match="path "):
        SqliteStore(path)


@pytest.mark.parametrize("path", [None, 7, b"/tmp/limits.db", True])
def test_a_path_is_a_str_or_a_path_object(path):
    with pytest.raises(TypeError, match="path must be a str or a path"):
        SqliteStore(path)


def test_a_relative_path_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("limits.db")
    monkeypatch.chdir("/")
    assert store.path == str(tmp_path / "limits.db")


def test_all_limiters_of_one_store_share_one_clock(path):
    store = SqliteStore(path)
    first = Limiter(RULE, store)
    with pytest.raises(InvalidRule, match="differs from this store's"):
        Limiter(RULE, store, clock=ManualClock())
    del first
    gc.collect()
    Limiter(RULE, store, clock=ManualClock())


def test_a_reservation_can_be_given_back_after_its_limiter_is_gone(path):
    store = SqliteStore(path)
    taken = Limiter(RULE, store).take("k")
    gc.collect()
    taken.give_back()
    assert rows(path) == []
    store.close()

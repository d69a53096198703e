"""Slabs: what workers have counted, in files that all of them read, whatever becomes of a worker."""

import errno
import multiprocessing
import os
import signal
import time

import pytest

from ratekeeper.metrics.families import BATCH_SIZE, DECISIONS, STORE_CALLS, WAITING, Sample
from ratekeeper.service.slabs import OWN, Slab, SlabReader
from ratekeeper.testing import ManualClock
from tests.waiters import until

OK = ("ok",)


@pytest.fixture
def slab(tmp_path):
    slab = Slab(tmp_path, 0)
    yield slab
    slab.close()


def count(slab, family, labels, times=1):
    slab.cells[slab.at(family, labels)] += times


def test_another_worker_reads_what_is_counted_as_it_is_counted(tmp_path, slab):
    reader = SlabReader(tmp_path, 0)
    assert list(reader.samples()) == []
    count(slab, STORE_CALLS, OK)
    count(slab, BATCH_SIZE, (), 3)
    assert list(reader.samples()) == [Sample(STORE_CALLS, OK, [1]), Sample(BATCH_SIZE, (), [3] + [0] * 9)]
    count(slab, STORE_CALLS, OK, 2)
    count(slab, DECISIONS, ("api", "user", "admitted"))
    assert list(reader.samples())[::2] == [
        Sample(STORE_CALLS, OK, [3]),
        Sample(DECISIONS, ("api", "user", "admitted"), [1]),
    ]
    assert list(slab.samples()) == list(reader.samples())


def test_a_worker_goes_on_with_the_slab_of_the_one_that_it_replaces(tmp_path, slab):
    count(slab, STORE_CALLS, OK, 5)
    count(slab, WAITING, (), 2)
    slab.cells[7] = 70
    replacement = Slab(tmp_path, 0)
    count(replacement, STORE_CALLS, OK)
    count(replacement, DECISIONS, ("api", "user", "denied"))
    assert list(replacement.samples()) == [
        Sample(STORE_CALLS, OK, [6]),
        Sample(WAITING, (), [2]),
        Sample(DECISIONS, ("api", "user", "denied"), [1]),
    ]
    assert replacement.cells[7] == 70
    replacement.close()


def test_the_first_integers_are_for_the_worker_itself(slab):
    for index in range(OWN // 2):
        slab.cells[index] = -1
    count(slab, STORE_CALLS, OK)
    assert list(slab.samples()) == [Sample(STORE_CALLS, OK, [1])]


def test_a_line_that_was_torn_by_the_end_of_its_writer_is_dropped(tmp_path, slab):
    count(slab, STORE_CALLS, OK, 5)
    with (tmp_path / "names-0").open("ab") as file:
        file.write(b'["ratekeeper_waiti')
    reader = SlabReader(tmp_path, 0)
    assert list(reader.samples()) == [Sample(STORE_CALLS, OK, [5])]
    replacement = Slab(tmp_path, 0)
    count(replacement, WAITING, (), 2)
    assert list(reader.samples()) == [Sample(STORE_CALLS, OK, [5]), Sample(WAITING, (), [2])]
    replacement.close()


def test_a_worker_is_alive_as_long_as_it_gives_a_sign_of_life(tmp_path):
    clock = ManualClock()
    slab = Slab(tmp_path, 3, clock)
    reader = SlabReader(tmp_path, 3, clock)
    assert (reader.is_alive, reader.process_id) == (True, os.getpid())
    clock.advance(10)
    assert not reader.is_alive
    slab.beat()
    assert reader.is_alive
    slab.close()


def test_a_worker_that_has_not_begun_has_no_slab(tmp_path):
    with pytest.raises(FileNotFoundError):
        SlabReader(tmp_path, 1)


def test_without_room_on_the_disk_nothing_ends_and_what_is_not_counted_is_logged_once(slab, monkeypatch, caplog):
    count(slab, STORE_CALLS, OK)

    def full(*_):
        raise OSError(errno.ENOSPC, "No room")

    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        count(slab, STORE_CALLS, ("error",))
        count(slab, STORE_CALLS, OK)
    monkeypatch.undo()
    count(slab, WAITING, (), 2)
    assert next(iter(slab.samples())) == Sample(STORE_CALLS, OK, [4])
    assert Sample(WAITING, (), [2]) in list(slab.samples())
    assert [record.getMessage() for record in caplog.records] == [
        "metrics: ratekeeper_store_calls_total('error',) is not counted, for want of room: [Errno 28] No room"
    ]


def test_every_part_that_is_counted_in_is_allocated_first(tmp_path, slab):
    for number in range(2_000):
        count(slab, DECISIONS, ("api", f"rule-{number}", "admitted"), number)
    size = (tmp_path / "counts-0").stat()
    taken = size.st_blocks * 512
    assert taken >= (OWN + 2_000 * 17) * 8
    assert taken < size.st_size
    assert [sample.values[0] for sample in SlabReader(tmp_path, 0).samples()] == list(range(2_000))


def _count_until_killed(directory):
    slab = Slab(directory, 0)
    at = slab.at(STORE_CALLS, OK)
    number = 0
    while True:
        slab.cells[at] += 1
        slab.at(DECISIONS, ("api", f"rule-{number}", "admitted"))
        number += 1
        if number > 15_000:
            time.sleep(60)


def test_what_was_counted_by_a_worker_that_is_killed_stays_and_is_readable(tmp_path):
    worker = multiprocessing.get_context("spawn").Process(target=_count_until_killed, args=(tmp_path,))
    worker.start()
    until((tmp_path / "counts-0").exists, "it has begun")

    def has_counted():
        try:
            reader = SlabReader(tmp_path, 0)
        except ValueError:
            return False
        return any(sample.values[0] > 500 for sample in reader.samples())

    until(has_counted, "it has counted")
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    reader = SlabReader(tmp_path, 0)
    before = {sample.labels: sample.values for sample in reader.samples()}
    replacement = Slab(tmp_path, 0)
    count(replacement, STORE_CALLS, OK)
    after = {sample.labels: sample.values for sample in reader.samples()}
    assert after == before | {OK: [before[OK][0] + 1]}
    assert before[OK][0] >= len(before) - 1
    replacement.close()

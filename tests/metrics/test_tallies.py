"""Tallies: counts of many threads that lose nothing and need no lock."""

import os
import threading

import pytest

from ratekeeper.metrics.families import BATCH_SIZE, DECISIONS, FAMILIES, MORE, STORE_CALLS, Sample
from ratekeeper.metrics.tallies import Tally, ThreadTallies, in_order, summed


def test_each_series_has_integers_of_its_own():
    tally = Tally(100)
    places = [tally.at(STORE_CALLS, ("ok",)), tally.at(BATCH_SIZE), tally.at(STORE_CALLS, ("error",))]
    assert places == [tally.at(STORE_CALLS, ("ok",)), tally.at(BATCH_SIZE), tally.at(STORE_CALLS, ("error",))]
    for number, at in enumerate(places, 1):
        tally.cells[at] += number
    tally.cells[places[1] + BATCH_SIZE.width - 1] += 7
    assert list(tally.samples()) == [
        Sample(STORE_CALLS, ("ok",), [1]),
        Sample(BATCH_SIZE, (), [2, 0, 0, 0, 0, 0, 0, 0, 0, 7]),
        Sample(STORE_CALLS, ("error",), [3]),
    ]


def test_series_beyond_the_most_are_counted_as_one_and_that_is_logged_once(caplog):
    tally = Tally(most=3)
    for number in range(10):
        tally.cells[tally.at(DECISIONS, ("api", f"rule {number}", "admitted"))] += 1
        tally.cells[tally.at(STORE_CALLS, ("ok",))] += 1
    assert {(sample.family, sample.labels): sample.values for sample in tally.samples()} == {
        (DECISIONS, ("api", "rule 0", "admitted")): [1],
        (DECISIONS, ("api", "rule 1", "admitted")): [1],
        (DECISIONS, (MORE, MORE, MORE)): [8],
        (STORE_CALLS, ("ok",)): [10],
    }
    assert [record.getMessage() for record in caplog.records] == [
        "metrics: there are 3 series; further ones are counted as '(more)'"
    ]


def test_sums_are_by_series_and_in_the_order_of_families():
    samples = [
        Sample(BATCH_SIZE, (), [0] * 9 + [5]),
        Sample(STORE_CALLS, ("ok",), [2]),
        Sample(STORE_CALLS, ("error",), [1]),
        Sample(BATCH_SIZE, (), [1] * 9 + [6]),
        Sample(STORE_CALLS, ("ok",), [40]),
    ]
    assert in_order(summed(samples)) == [
        Sample(STORE_CALLS, ("error",), [1]),
        Sample(STORE_CALLS, ("ok",), [42]),
        Sample(BATCH_SIZE, (), [1] * 9 + [11]),
    ]


def test_threads_that_come_and_go_share_few_tallies_and_lose_no_count():
    tallies = ThreadTallies()
    in_use = set()

    def count():
        tally = tallies.mine()
        in_use.add(id(tally))
        for _ in range(1_000):
            tally.cells[tally.at(STORE_CALLS, ("ok",))] += 1

    for _ in range(20):
        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert summed(tallies.samples()) == [Sample(STORE_CALLS, ("ok",), [80_000])]
    assert len(in_use) <= 4


def test_a_thread_keeps_its_tally_as_long_as_it_lives():
    tallies = ThreadTallies()
    mine = tallies.mine()
    others = []
    thread = threading.Thread(target=lambda: others.append(tallies.mine()))
    thread.start()
    thread.join()
    assert tallies.mine() is mine
    assert others[0] is not mine


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where there is fork")
def test_a_forked_child_counts_from_nothing():
    tallies = ThreadTallies()
    at = tallies.mine().at(STORE_CALLS, ("ok",))
    tallies.mine().cells[at] += 5
    child = os.fork()
    if child == 0:
        os._exit(len(list(tallies.samples())))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert summed(tallies.samples()) == [Sample(STORE_CALLS, ("ok",), [5])]


def test_names_and_labels_of_metrics_are_the_promised_ones():
    assert {family.name: set(family.labels) for family in FAMILIES} == {
        "ratekeeper_decisions_total": {"policy", "rule", "outcome"},
        "ratekeeper_degraded_total": {"policy"},
        "ratekeeper_remembered_denials_total": set(),
        "ratekeeper_decision_seconds": {"policy", "protocol"},
        "ratekeeper_store_up": set(),
        "ratekeeper_store_calls_total": {"result"},
        "ratekeeper_batch_size": set(),
        "ratekeeper_keys": set(),
        "ratekeeper_evictions_total": set(),
        "ratekeeper_waiting": set(),
        "ratekeeper_policies_version": set(),
        "ratekeeper_policies_reloads_total": {"result"},
        "ratekeeper_limit": {"policy", "rule"},
    }
    assert [family.name for family in FAMILIES if (family.kind == "counter") != family.name.endswith("_total")] == []

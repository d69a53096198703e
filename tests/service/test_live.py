"""The live chart: decisions second by second, of one worker and of all."""

from ratekeeper.decision import NO_LAYERS, Decision
from ratekeeper.service.live import LENGTH, Live
from ratekeeper.service.service_counter import CountedNow, LiveCounter
from ratekeeper.service.talkers import Talkers
from ratekeeper.testing import ManualClock

ADMITTED = Decision(True, 2, 1, 0.0, 60.0, 0.0, "r", NO_LAYERS, False)
DENIED = Decision(False, 2, 0, 30.0, 60.0, 0.0, "r", NO_LAYERS, False)


def count(live, clock, *decisions):
    now = CountedNow(live, Talkers())
    for decision in decisions:
        LiveCounter(now).decided("hit", (), decision, clock(), clock())


def seconds(report, kind="admitted"):
    return [second[kind] for second in report["seconds"]]


def test_decisions_are_counted_in_all_and_by_the_second():
    clock = ManualClock(1_000)
    live = Live(clock=clock)
    count(live, clock, ADMITTED, ADMITTED, DENIED, ADMITTED._replace(degraded=True))
    clock.advance(1)
    count(live, clock, DENIED)
    report = live.report()
    assert (report["admitted"], report["denied"], report["degraded"]) == (3, 2, 1)
    assert report["seconds"][-2:] == [
        {"admitted": 0, "denied": 0, "degraded": 0},
        {"admitted": 3, "denied": 1, "degraded": 1},
    ]


def test_a_second_in_which_nothing_happened_counts_too():
    clock = ManualClock(1_000)
    live = Live(clock=clock)
    count(live, clock, ADMITTED)
    clock.advance(3)
    assert seconds(live.report())[-3:] == [1, 0, 0]
    clock.advance(86_400)
    assert set(seconds(live.report())) == {0}
    assert len(seconds(live.report())) == 120


def test_it_keeps_the_latest_seconds_however_long_it_runs():
    clock = ManualClock(1_000)
    live = Live(clock=clock)
    for number in range(1_000):
        count(live, clock, *[ADMITTED] * (number % 7))
        clock.advance(1)
    assert seconds(live.report()) == [number % 7 for number in range(880, 1_000)]
    assert live.report()["admitted"] == sum(number % 7 for number in range(1_000))


def test_workers_are_added_up_also_one_that_replaced_another():
    clock = ManualClock(1_000)
    cells = [[0] * LENGTH for _ in range(3)]
    workers = [Live(each, clock) for each in cells]
    for number in range(10):
        count(workers[0], clock, ADMITTED)
        count(workers[1], clock, ADMITTED, DENIED)
        if number % 2:
            count(workers[2], clock, ADMITTED, ADMITTED)
        if number == 4:
            workers[1] = Live(cells[1], clock)
        clock.advance(1)
    reports = [Live(own, clock).report([each for each in cells if each is not own]) for own in cells]
    assert seconds(reports[0])[-10:] == [2, 4] * 5
    assert seconds(reports[0], "denied")[-11:] == [0] + [1] * 10
    assert (reports[0]["admitted"], reports[0]["denied"]) == (30, 10)
    assert reports[0] == reports[1] == reports[2]

"""One request whose keys are in different slots of a cluster: never one unit over, all or nothing in the end.

All parts are asked first: a denial costs one round trip and takes nothing. Then hits are charged in order, the same
for everybody; if somebody was quicker at a later one, or it is not decided, what was taken is given back. Until then,
or until it expires if the give-back is interrupted, the earlier parts count more than was admitted, never less. What
cannot be denied comes last.

`across` yields requests that may be decided at the same time, and is sent what came of each, or thrown what interrupts
the caller. What it yields to give back needs no answer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from ratekeeper.stores.protocol import Demand, Outcome
from ratekeeper.stores.redis.exchange import Torn
from ratekeeper.stores.redis.wire import Request, Result, slot_of

Parts = Sequence[Sequence[int]]  # positions in the request's demands
Across = Generator[Sequence[Request], Sequence[Result | BaseException], Outcome]


class Voids(list[Request]):
    """What gives back what a hit has taken so far; its answers do not matter."""


def parts_of(request: Request) -> Parts:
    """Return the positions of the demands whose keys one call can decide."""
    if len({demand.key for demand in request}) == 1:  # nearly always
        return [range(len(request))]
    parts: dict[int, list[int]] = {}
    for at, demand in enumerate(request):
        parts.setdefault(slot_of(demand.key), []).append(at)
    return list(parts.values())


def singly(request: Request) -> Parts:
    """Return each demand as a part of its own."""
    return [[at] for at in range(len(request))]


def across(request: Request, parts: Parts) -> Across:
    """Decide a request part by part."""
    if all(demand.operation == "peek" for demand in request) or not any(map(_asks, request)):
        return (yield from _at_once(request, parts))
    peeks = _merged(parts, _checked((yield [[_as_peek(request[at]) for at in part] for part in parts])))
    if not _admits(request, peeks):
        return peeks
    outcome = peeks
    taken: list[Demand] = []  # what gives back what was charged so far
    for part in parts:
        hits = [at for at in part if request[at].operation == "hit"]
        if not hits:
            continue
        asked = _part(request, hits)
        result = yield from _result_of(asked)
        if not isinstance(result, Outcome) or not _admits(asked, result):
            if taken:
                yield Voids([demand] for demand in taken)  # each by itself: the slot may move by now
            return _with(peeks, hits, _checked([result])[0])  # of the others, what they said before
        outcome = _with(outcome, hits, result)
        taken += [
            demand._replace(operation="give_back", receipt=receipt)
            for demand, receipt, answer in zip(asked, result.receipts, result.answers, strict=True)
            if answer[0]
        ]
    rest = [[at for at in part if not _asks(request[at])] for part in parts]
    if any(rest):
        done = yield from _at_once(request, [part for part in rest if part])
        outcome = _with(outcome, sorted(at for part in rest for at in part), done)
    return outcome


def takes(asked: Sequence[Request]) -> bool:
    """Tell whether what is asked takes something that may have to be given back."""
    return any(demand.operation == "hit" for request in asked for demand in request)


def _result_of(asked: Request) -> Generator[Sequence[Request], Sequence[Any], Result | BaseException]:
    """Return what came of a part, an interruption of the caller included."""
    try:
        (result,) = yield [asked]
    except GeneratorExit:
        raise
    except BaseException as interruption:  # noqa: BLE001 - raised again once all is given back
        return interruption
    return result  # type: ignore[no-any-return]


def _at_once(request: Request, parts: Parts) -> Across:
    """Do what no part can deny: all parts, and each demand of those that were torn, which alone were not done."""
    results = yield [_part(request, part) for part in parts]
    done = [each for each in zip(parts, results, strict=True) if not isinstance(each[1], Torn)]
    torn = [[at] for part, result in zip(parts, results, strict=True) if isinstance(result, Torn) for at in part]
    if torn:
        done += zip(torn, (yield [_part(request, part) for part in torn]), strict=True)
    return _merged([part for part, _ in done], _checked([result for _, result in done]))


def _part(request: Request, part: Sequence[int]) -> Request:
    return [request[at] for at in part]


def _asks(demand: Demand) -> bool:
    return demand.operation in ("hit", "peek")


def _as_peek(demand: Demand) -> Demand:
    """Return what asks how a demand stands: of what cannot be denied, at cost 1."""
    return demand._replace(operation="peek") if _asks(demand) else demand._replace(operation="peek", cost=1)


def _admits(request: Request, outcome: Outcome) -> bool:
    return not any(
        demand.binds and _asks(demand) and not answer[0]
        for demand, answer in zip(request, outcome.answers, strict=True)
    )


def _checked(results: Sequence[Result | BaseException]) -> Sequence[Outcome]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


def _with(outcome: Outcome, positions: Sequence[int], part: Outcome) -> Outcome:
    """Return an outcome with other answers at some positions."""
    answers, times = list(outcome.answers), list(outcome.times_us)
    for at, answer, time in zip(positions, part.answers, part.times_us or [part.now_us] * len(positions), strict=True):
        answers[at], times[at] = answer, time
    return Outcome(max(times), answers, times_us=times)


def _merged(parts: Parts, outcomes: Sequence[Outcome]) -> Outcome:
    by_position = {
        at: (answer, outcome.now_us)
        for part, outcome in zip(parts, outcomes, strict=True)
        for at, answer in zip(part, outcome.answers, strict=True)
    }
    in_order = [by_position[at] for at in sorted(by_position)]
    return Outcome(
        max(outcome.now_us for outcome in outcomes),
        [answer for answer, _ in in_order],
        steady_us=min(outcome.steady_us for outcome in outcomes),
        times_us=[time for _, time in in_order],
    )

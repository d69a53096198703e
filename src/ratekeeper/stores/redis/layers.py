"""One request whose keys are in different slots of a cluster: never one unit over, all or nothing in the end.

All parts are asked first: a denial costs one round trip and takes nothing. Then they are charged in order, the same
for everybody; if somebody was quicker at a later one, or it is not decided, what was taken is given back. Until then,
or until it expires if the give-back is interrupted, the earlier parts count more than was admitted, never less.

`across` yields requests that may be decided at the same time, and is sent what came of each, or thrown what interrupts
the caller. What it yields to give back needs no answer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ratekeeper.stores.port import Outcome
from ratekeeper.stores.redis.exchange import Torn
from ratekeeper.stores.redis.wire import Request, Result, slot_of

Parts = Sequence[Sequence[int]]  # positions in the request's demands
Across = Generator[Sequence[Request], Sequence[Result | BaseException], Outcome]


def parts_of(request: Request) -> Parts:
    """Return the positions of the demands whose keys one call can decide."""
    if len({demand.key for demand in request.demands}) == 1:  # nearly always
        return [range(len(request.demands))]
    parts: dict[int, list[int]] = {}
    for at, demand in enumerate(request.demands):
        parts.setdefault(slot_of(demand.key), []).append(at)
    return list(parts.values())


def singly(request: Request) -> Parts:
    """Return each demand as a part of its own."""
    return [[at] for at in range(len(request.demands))]


def across(request: Request, parts: Parts) -> Across:
    """Decide a request part by part."""
    if request.operation != "hit":
        return (yield from _at_once(request, parts))
    asked = [_part(request, part) for part in parts]
    peeks = _checked((yield [part._replace(operation="peek") for part in asked]))
    if not all(map(_admits, peeks)):
        return _merged(parts, peeks)
    taken: list[Outcome] = []
    for part in asked:
        result: Result | BaseException
        try:
            (result,) = yield [part]
        except GeneratorExit:
            raise
        except BaseException as interruption:  # noqa: BLE001 - raised again below
            result = interruption
        if isinstance(result, Outcome) and _admits(result):
            taken.append(result)
            continue
        if taken:
            yield [
                Request("give_back", [demand], outcome.charge.part([at]))  # each by itself: the slot may move by now
                for earlier, outcome in zip(asked, taken, strict=False)
                for at, demand in enumerate(earlier.demands)
            ]
        (denied,) = _checked([result])
        answers = [*peeks[: len(taken)], denied, *peeks[len(taken) + 1 :]]  # of the others, what they said just now
        return _merged(parts, answers)._replace(steady_us=0)
    return _merged(parts, taken)


def _at_once(request: Request, parts: Parts) -> Across:
    """Do what no part can deny: all parts, and each demand of those that were torn, which alone were not done."""
    results = yield [_part(request, part) for part in parts]
    done = [each for each in zip(parts, results, strict=True) if not isinstance(each[1], Torn)]
    torn = [[at] for part, result in zip(parts, results, strict=True) if isinstance(result, Torn) for at in part]
    if torn:
        done += zip(torn, (yield [_part(request, part) for part in torn]), strict=True)
    return _merged([part for part, _ in done], _checked([result for _, result in done]))


def voids(request: Request, asked: Sequence[Request]) -> bool:
    """Tell whether what is asked gives back what a hit has taken so far."""
    return request.operation == "hit" and asked[0].operation == "give_back"


def _part(request: Request, part: Sequence[int]) -> Request:
    charge = None if request.charge is None else request.charge.part(part)
    return Request(request.operation, [request.demands[at] for at in part], charge)


def _admits(outcome: Outcome) -> bool:
    return all(answer[0] for answer in outcome.answers)


def _checked(results: Sequence[Result | BaseException]) -> Sequence[Outcome]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


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

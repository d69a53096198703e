"""An interruption at any point of any call leaves a memory store whole, and each key as before the call or as after."""

import gc
import os

import pytest

from ratekeeper import FixedWindow, LeakyBucket, Limiter, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.stores import MemoryStore
from ratekeeper.stores.protocol import Binding, Demand
from ratekeeper.testing import ManualClock
from tests import inside, points
from tests.waiters import untraced

ROOM = 6
RULES = [
    FixedWindow(10, 60),
    SlidingWindowLog(10, 60),
    SlidingWindowCounter(10, 60),
    TokenBucket(10, "10/minute"),
    LeakyBucket(10, "10/minute", "shaping"),
]
START = 1_699_999_200
KEYS = ("light", "heavy", "spent", "emptied", "fresh")


@pytest.fixture(autouse=True)
def _no_collection():
    """Let no signal arrive in what other libraries do at a garbage collection."""
    gc.disable()
    yield
    gc.enable()


class Scene:
    """A full store: the keys of a rule, one of them emptied, and those of a rule that has more than its part."""

    def __init__(self, rule):
        self.clock = ManualClock(START)
        self.store = MemoryStore(ROOM)
        self.limiter = Limiter({"user": rule}, self.store, clock=self.clock)
        self.flooded = Limiter({"flooded": FixedWindow(10, 3600)}, self.store, clock=self.clock)
        self.limiter.hit("emptied", 5)
        self.limiter.reset("emptied")
        self.limiter.hit("spent", 10)
        for number in range(ROOM):
            self.flooded.hit(f"flood {number}", 2)
        self.limiter.hit("light")
        self.clock.advance(1)
        self.limiter.hit("heavy", 5)
        self.taken = self.limiter.take("heavy", 2)

    def standing(self):
        """How each key stands; peeks change nothing."""
        return {key: self.limiter.peek(key) for key in KEYS}

    def bind(self, name, group=None):
        """Note a rule as a limiter does, and use it."""
        rule = FixedWindow(10, 90)
        binding = Binding(name, rule, ("ratekeeper", rule.algorithm, name), group)
        self.store.bind(binding, self.clock)
        self.store.execute([Demand(binding, f"of {name}", 9)])
        return binding

    def note(self, name, group=None):
        """Note a rule that another limiter uses already, without using it."""
        rule = FixedWindow(10, 100)
        self.store.bind(Binding(name, rule, ("ratekeeper", rule.algorithm, name), group), self.clock)

    def empty_keys(self, first, last):
        """Use and reset keys, so that there is more to be swept than is stored."""
        for number in range(first, last):
            self.limiter.hit(f"emptied {number}", 9)
            self.limiter.reset(f"emptied {number}")


# The calls, each with what is done before it.
CALLS = {
    "hit": (None, lambda scene: scene.limiter.hit("heavy")),
    "denied hit": (None, lambda scene: scene.limiter.hit("spent")),
    "hit on a new key": (None, lambda scene: scene.limiter.hit("fresh", 3)),
    "hit on a new key of a rule that has its part": (None, lambda scene: scene.flooded.hit("fresh", 3)),
    "hit on a new key that has used less than all": (None, lambda scene: scene.flooded.hit("fresh")),
    "hit on a key that was emptied": (None, lambda scene: scene.limiter.hit("emptied")),
    "charge": (None, lambda scene: scene.limiter.charge("heavy", 7)),
    "refund": (None, lambda scene: scene.limiter.refund("heavy", 1)),
    "refund of everything": (None, lambda scene: scene.limiter.refund("heavy", 10)),
    "reset": (None, lambda scene: scene.limiter.reset("heavy")),
    "reset of a key among many": (
        lambda scene: scene.empty_keys(0, 20),
        lambda scene: scene.limiter.reset("heavy"),
    ),
    "give back": (None, lambda scene: scene.taken.give_back()),
    "peek": (None, lambda scene: scene.limiter.peek("heavy")),
    "inspect": (None, lambda scene: scene.limiter.inspect("heavy")),
    "hit when everything has expired": (
        lambda scene: scene.clock.set(START + 10_000),
        lambda scene: scene.limiter.hit("fresh"),
    ),
    "a limiter is made": (None, lambda scene: scene.note("new")),
    "another limiter of a rule is made": (None, lambda scene: scene.note("user")),
    "a limiter is made after another is gone": (
        lambda scene: scene.store.unbind([scene.bind("gone")]),
        lambda scene: scene.note("new"),
    ),
    "a limiter without a group is made of a grouped rule": (
        lambda scene: scene.bind("grouped", "g"),
        lambda scene: scene.note("grouped"),
    ),
    "close": (None, lambda scene: scene.store.close()),
}
WITH_THE_STATES_OF_EACH_RULE = ("hit", "charge", "refund", "refund of everything", "give back")


def check(scene, before, after):
    """Check that a store is whole after an interruption."""
    assert inside.lock(scene.store).free, "the lock is taken"
    standing = scene.standing()
    assert {key: decision for key, decision in standing.items() if decision not in (before[key], after[key])} == {}
    for number in range(3 * ROOM):  # the store goes on, with as much room as before
        assert scene.limiter.hit(f"later {number}", 9)
        assert scene.store.size <= ROOM + 1
    assert not scene.limiter.hit(f"later {number}", 2), "the newest key was not counted"
    scene.clock.set(START + 20_000)
    for _ in range(30):
        scene.limiter.peek("another")
    assert scene.store.size == 0, "a key never expires"
    evictions = scene.store.evictions
    for number in range(ROOM):
        scene.limiter.hit(number)
    assert (scene.store.size, scene.store.evictions) == (ROOM, evictions), "there is less room than there was"


def each_point(rule, prepare, call):
    """Interrupt a call at every point; give the scene after each, and how keys stand before and after the call."""

    def prepared():
        scene = Scene(rule)
        if prepare is not None:
            prepare(scene)
        return scene

    scene = prepared()
    before = scene.standing()
    call(scene)
    after = scene.standing()
    point, is_reached = 0, True
    while is_reached:
        scene = prepared()
        with points.handled_by(points.interrupt):
            try:
                is_reached = points.at(point, lambda scene=scene: call(scene))
            except points.Interruption:
                is_reached = True
        yield scene, before, after
        point += 1


@pytest.mark.parametrize(
    ("rule", "call"),
    [(RULES[0], call) for call in CALLS]
    + [(rule, call) for rule in RULES[1:] for call in WITH_THE_STATES_OF_EACH_RULE],
    ids=lambda value: getattr(value, "algorithm", value),
)
def test_an_interruption_leaves_a_full_store_whole(rule, call):
    with untraced():
        for scene, before, after in each_point(rule, *CALLS[call]):
            check(scene, before, after)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.algorithm)
def test_any_number_of_interruptions_leaves_a_full_store_whole(rule):
    scene = Scene(rule)
    before = scene.standing()
    interrupted = 0
    with untraced(), points.handled_by(points.interrupt):
        for number in range(400):
            for limiter in (scene.limiter, scene.flooded):
                try:
                    points.at(number, lambda limiter=limiter, number=number: limiter.hit(f"new {number}", 2))
                except points.Interruption:
                    interrupted += 1
        assert interrupted > 700
        check(scene, before, before | {"light": scene.limiter.peek("light"), "heavy": scene.limiter.peek("heavy")})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_in_the_middle_of_a_call_finds_a_full_store_whole():
    statuses = []
    with untraced():
        for point in range(0, 600, 20):
            scene = Scene(RULES[0])
            before = scene.standing()

            def fork(scene=scene, before=before):
                child = os.fork()
                if not child:
                    status = 1
                    try:
                        check(
                            scene,
                            before,
                            before | {"fresh": scene.limiter.peek("fresh"), "light": scene.limiter.peek("light")},
                        )
                        status = 0
                    finally:
                        os._exit(status)
                statuses.append(os.waitpid(child, 0)[1])

            with points.handled_by(fork):
                points.at(point, lambda scene=scene: scene.limiter.hit("fresh", 3))
            assert scene.limiter.peek("fresh").remaining == 7
    assert statuses == [0] * 30

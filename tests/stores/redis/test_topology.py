"""Which server is asked where a key is, and which one next."""

import pytest
from redis.exceptions import AskError, MasterDownError, MovedError, ReadOnlyError, ResponseError

from ratekeeper import flows
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.redis_errors import Unanswered, Unsent, meaning_of, redirection_of
from ratekeeper.stores.redis.routing import Bundle, send
from ratekeeper.stores.redis.topology import Cluster, Sentinel
from ratekeeper.stores.redis.urls import NodeAddress

ONE, TWO, THREE, FOUR, FIVE = (NodeAddress("a-host", port) for port in range(1, 6))
CONNECTING = (object, {})
NO_CLUSTER = Exception("ERR This instance has cluster support disabled")


def asked_in(flow_of, replies):
    """Run a flow with servers that always reply the same; return which were asked, and the result."""
    asked = []

    def exchange(node, commands):
        asked.append(node)
        if isinstance(replies[node], Unanswered):
            raise replies[node]
        return [replies[node]] * len(commands)

    try:
        flows.run(flow_of(exchange))
    except StoreUnavailable as error:
        return asked, error
    return asked, None


class Link:
    """Finds out where the servers are in this thread, with what each replies to everything."""

    def __init__(self, topology, exchange):
        self._topology = topology
        self.exchange = exchange

    def find(self):
        flows.run(self._topology.discover(self.exchange))


def sending(topology, bundle):
    return lambda exchange: send(topology, [bundle], Link(topology, exchange))


def slots_of(address):
    return [[0, 16_383, [address.host.encode(), address.port, b"id"]]]


def named(address):
    return [address.host.encode(), b"%d" % address.port]


@pytest.mark.parametrize("useless", [[], NO_CLUSTER, Unanswered()], ids=["no slots", "no cluster", "no answer"])
def test_a_node_that_cannot_tell_the_slots_is_asked_last_the_next_time(useless):
    cluster = Cluster(CONNECTING, [ONE, TWO, THREE, FOUR])
    replies = {ONE: useless, TWO: useless, THREE: useless, FOUR: slots_of(FOUR)}
    asked, error = asked_in(cluster.discover, replies)
    assert asked == [ONE, TWO, THREE]
    assert error is not None
    assert asked_in(cluster.discover, replies) == ([FOUR], None)


@pytest.mark.parametrize("useless", [None, NO_CLUSTER, Unanswered()], ids=["no master", "no sentinel", "no answer"])
def test_a_sentinel_that_cannot_name_the_master_is_asked_last_the_next_time(useless):
    sentinel = Sentinel(CONNECTING, CONNECTING, [ONE, TWO, THREE, FOUR], "a-master")
    replies = {ONE: useless, TWO: useless, THREE: useless, FOUR: named(FIVE)}
    asked, error = asked_in(sentinel.discover, replies)
    assert asked == [ONE, TWO, THREE]
    assert error is not None
    assert asked_in(sentinel.discover, replies) == ([FOUR], None)


def test_of_a_master_that_is_away_another_sentinel_is_asked():
    """The sentinel that reported it may be cut off from the others, and report it for ever."""
    sentinel = Sentinel(CONNECTING, CONNECTING, [ONE, TWO], "a-master")
    gone, master = THREE, FOUR
    replies = {ONE: named(gone), TWO: named(master), gone: Unsent(), master: b"decided"}
    bundle = Bundle(None, [(b"EVALSHA",)])
    assert asked_in(sending(sentinel, bundle), replies) == ([ONE, gone, TWO, master], None)
    assert bundle.replies == [b"decided"]


@pytest.mark.parametrize("refusal", [ReadOnlyError(""), MasterDownError("")], ids=["READONLY", "MASTERDOWN"])
def test_what_a_master_refuses_that_has_become_a_replica_is_sent_to_the_next(refusal):
    sentinel = Sentinel(CONNECTING, CONNECTING, [ONE, TWO], "a-master")
    demoted, master = THREE, FOUR
    replies = {ONE: named(demoted), TWO: named(master), demoted: refusal, master: b"decided"}
    bundle = Bundle(None, [(b"EVALSHA",)])
    assert asked_in(sending(sentinel, bundle), replies) == ([ONE, demoted, TWO, master], None)
    assert bundle.replies == [b"decided"]


def test_of_a_node_that_is_away_another_node_is_asked():
    """The node that reported the slot may be cut off from the others, and report it for ever."""
    cluster = Cluster(CONNECTING, [ONE, TWO])
    gone, master = THREE, FOUR
    replies = {ONE: slots_of(gone), TWO: slots_of(master), gone: Unsent(), master: b"decided"}
    bundle = Bundle(0, [(b"EVALSHA",)])
    assert asked_in(sending(cluster, bundle), replies) == ([ONE, gone, TWO, master], None)
    assert bundle.replies == [b"decided"]


def test_a_node_that_is_away_keeps_nothing_from_the_other_nodes():
    """Such as a give-back, for which little time may be left."""
    cluster = Cluster(CONNECTING, [ONE])
    halves = [[0, 8191, [b"a-host", TWO.port, b"id"]], [8192, 16_383, [b"a-host", THREE.port, b"id"]]]
    replies = {ONE: halves, THREE: b"decided"}
    assert asked_in(cluster.discover, replies) == ([ONE], None)
    cluster.suspect(TWO)
    bundle = Bundle(8192, [(b"EVALSHA",)])
    assert asked_in(sending(cluster, bundle), replies) == ([THREE], None)
    assert bundle.replies == [b"decided"]


def test_who_told_is_asked_again_before_those_who_may_be_gone_as_well():
    cluster = Cluster(CONNECTING, [ONE, TWO, THREE, FOUR])
    gone = FIVE
    replies = dict.fromkeys([TWO, THREE, FOUR, gone], Unsent()) | {ONE: slots_of(gone)}
    bundle = Bundle(0, [(b"EVALSHA",)])
    assert asked_in(sending(cluster, bundle), replies) == ([ONE, gone, TWO, ONE], None)
    assert cluster.is_known


@pytest.mark.parametrize(
    ("refusal", "meaning", "where"),
    [
        (ResponseError("MOVED 3999 127.0.0.1:6381"), "moved", (3999, "127.0.0.1", 6381)),  # as redis-py 5 leaves it
        (ResponseError("ASK 3999 a-host:6381"), "ask", (3999, "a-host", 6381)),
        (MovedError("3999 127.0.0.1:6381"), "moved", (3999, "127.0.0.1", 6381)),
        (AskError("0 fd00::1:6381"), "ask", (0, "fd00::1", 6381)),
        (MovedError("16383 :6381"), "moved", (16_383, "", 6381)),
    ],
)
def test_where_a_slot_is_is_read_from_what_the_node_says(refusal, meaning, where):
    assert (meaning_of(refusal), redirection_of(refusal)) == (meaning, where)

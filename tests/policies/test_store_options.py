"""How a policy uses its store: on_error, local_share and lease, in the file, by the limiter, and as defaults."""

import pytest
import redis

from ratekeeper import InvalidRule
from ratekeeper.policies import InvalidPolicies, Policies
from ratekeeper.policies.model import StoreOptions
from tests import servers

RULE = '[[policies.api.rules]]\nname = "user"\nlimit = "fixed-window 100/day"\nkey = "{user}"\n'


def file(options="", rules=RULE):
    return f"[policies.api]\n{options}\n{rules}"


def gone():
    """Return the URL of a server that is not there."""
    return f"redis://127.0.0.1:{servers.free_port()}"


def admitted(limiter):
    """Count the hits that the limiter admits."""
    count = 0
    while limiter.hit({"user": "ada"}).allowed:
        count += 1
    return count


def test_while_the_store_is_away_each_process_enforces_the_share_of_the_file():
    assert admitted(Policies.load(file("local_share = 0.25")).limiter("api", gone())) == 25


def test_a_changed_share_counts_from_then_on_with_the_usage_so_far():
    policies = Policies.load(file("local_share = 0.25"))
    limiter = policies.limiter("api", gone())
    assert admitted(limiter) == 25
    policies.replace(file("local_share = 0.5"))
    assert admitted(limiter) == 25


def test_the_limiter_counts_before_the_file_and_the_file_before_the_defaults():
    policies = Policies.load(file("local_share = 0.25"))
    assert admitted(policies.limiter("api", gone(), local_share=0.1)) == 10
    defaults = StoreOptions(local_share=1, on_error="closed")
    assert admitted(policies.limiter("api", gone(), defaults=defaults)) == 0
    assert admitted(policies.limiter("api", gone(), on_error="local", defaults=defaults)) == 25


def test_a_share_that_a_rule_cannot_have_is_refused_and_changes_nothing():
    policies = Policies.load(file(rules=RULE.replace("fixed-window 100/day", "token-bucket 1/400d burst 1")))
    limiter = policies.limiter("api", gone())
    with pytest.raises(InvalidRule, match="local_share"):
        policies.replace(file("local_share = 0.3", RULE.replace("fixed-window 100/day", "token-bucket 1/400d burst 1")))
    assert admitted(limiter) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("local_share = 0", "policies.api.local_share: must be at least 0.000001 and at most 1, not 0"),
        ("local_share = true", "policies.api.local_share: must be a number, not True"),
        ("lease = 61", "policies.api.lease: must be above 0 and at most 60 seconds, not 61"),
        ('lease = "long"', "policies.api.lease: must be a number of seconds, not 'long'"),
    ],
)
def test_what_cannot_be_is_a_mistake(options, reason):
    with pytest.raises(InvalidPolicies) as refused:
        Policies.load(file(options))
    assert [str(mistake) for mistake in refused.value.mistakes] == [f"line 2: {reason}"]


@pytest.mark.parametrize(
    "rules", [RULE + RULE.replace("user", "tenant"), RULE.replace("fixed-window 100/day", "leaky-bucket 1/s shaping")]
)
def test_a_lease_needs_one_rule_that_does_not_shape(rules):
    reason = "policies.api.lease: needs a policy with one rule, which does not shape"
    with pytest.raises(InvalidPolicies, match=reason):
        Policies.load(file("lease = 1", rules))
    with pytest.raises(InvalidRule, match="lease needs a policy with one rule"):
        Policies.load(file(rules=rules)).limiter("api", lease=1)
    Policies.load(file(rules=rules)).limiter("api", defaults=StoreOptions(lease=1))


@pytest.fixture
def server():
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server
    server.stop()


def asked(server):
    """Return how many scripts a server has run."""
    with redis.Redis(port=server.port) as client:
        return client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


@pytest.mark.parametrize("given", ["the file", "the limiter", "the defaults"])
def test_with_a_lease_hot_keys_are_spent_without_asking_and_the_rest_is_given_back(server, given):
    policies = Policies.load(file("lease = 60" if given == "the file" else "", RULE.replace("100/day", "100000/day")))
    options = {"the limiter": {"lease": 60}, "the defaults": {"defaults": StoreOptions(lease=60)}}.get(given, {})
    with policies.limiter("api", server.url, on_error="raise", deadline=30, **options) as limiter:
        for _ in range(400):
            assert limiter.hit({"user": "ada"}).allowed
        assert asked(server) < 100
    with policies.limiter("api", server.url, on_error="raise", deadline=30) as limiter:
        assert limiter.peek({"user": "ada"}).remaining == 100_000 - 400


def test_a_lease_that_ends_with_the_file_is_given_back(server):
    leased = file("lease = 60", RULE.replace("100/day", "100000/day"))
    policies = Policies.load(leased)
    with policies.limiter("api", server.url, on_error="raise", deadline=30) as limiter:
        for _ in range(400):
            limiter.hit({"user": "ada"})
        policies.replace(leased.replace("lease = 60", ""))
        for _ in range(5):
            limiter.hit({"user": "ada"})
        before = asked(server)
        assert limiter.hit({"user": "ada"}).remaining == 100_000 - 406
        assert asked(server) == before + 1

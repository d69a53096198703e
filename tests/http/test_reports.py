"""What responses report: when there is more after a request that has left nothing, and how that is found out."""

import pytest

from ratekeeper import StoreUnavailable
from ratekeeper.http import Headers
from tests.http.requests import a_request
from tests.http.test_gate import NOW, gate  # noqa: F401 - a fixture
from tests.waiters import RecordingStore


class UnreadableStore(RecordingStore):
    """A store that cannot answer a peek, for one reason or another."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    def execute(self, demands, ends_ns=None):
        if demands[0].operation == "peek":
            raise self._error
        return super().execute(demands, ends_ns)


def fields(limited, admission):
    return dict(limited.report({}, admission).fields())


@pytest.mark.parametrize("correctable", [True, False])
def test_only_a_request_that_leaves_nothing_is_followed_by_a_peek(gate, correctable):  # noqa: F811
    store = RecordingStore()
    limited = gate("sliding-window-log 2/minute", store=store)
    admissions = [limited.admit(a_request(), correctable=correctable) for _ in range(3)]
    assert store.operations.count("peek") == 1
    told = [fields(limited, each) for each in admissions]
    assert [each["RateLimit"].partition(";")[2] for each in told] == ["r=1;t=60", "r=0;t=60", "r=0;t=60"]


@pytest.mark.parametrize(
    "headers", [Headers.off(), Headers(legacy=False, draft=None)], ids=["none", "only Retry-After"]
)
def test_there_is_no_peek_for_headers_without_a_time(gate, headers):  # noqa: F811
    store = RecordingStore()
    limited = gate("sliding-window-log 1/minute", store=store, headers=headers)
    assert [limited.admit(a_request()).decision.allowed for _ in range(2)] == [True, False]
    assert "peek" not in store.operations


@pytest.mark.parametrize("correctable", [True, False])
@pytest.mark.parametrize("on_error", ["raise", "local"])
def test_a_request_is_admitted_if_the_store_is_gone_before_the_peek(gate, on_error, correctable):  # noqa: F811
    store = UnreadableStore(StoreUnavailable("gone"))
    limited = gate("2/s burst 1", store=store, on_error=on_error)
    admission = limited.admit(a_request(), correctable=correctable)
    assert admission.decision.allowed
    assert fields(limited, admission)["X-RateLimit-Reset"] == str(NOW + 1)


def test_a_request_that_is_held_is_let_go_if_the_peek_fails(gate):  # noqa: F811
    store = UnreadableStore(LookupError("a bug"))
    limited = gate("leaky-bucket 1/s burst 2 shaping", store=store)
    limited.admit(a_request())
    with pytest.raises(LookupError):
        limited.admit(a_request())
    assert getattr(limited, "gate", limited).held.count == 0


def test_each_rule_with_nothing_left_reports_when_it_admits_again(gate):  # noqa: F811
    limited = gate({"bucket": "1/s burst 2", "log": "sliding-window-log 2/minute", "wide": "100/minute"}, cost=2)
    told = fields(limited, limited.admit(a_request()))
    assert told["RateLimit"] == '"bucket";r=0;t=1, "log";r=0;t=60, "wide";r=98;t=77'
    assert (told["X-RateLimit-Limit"], told["X-RateLimit-Reset"]) == ("2", str(NOW + 60))


def test_a_rule_without_a_cost_does_not_report(gate):  # noqa: F811
    limited = gate(
        {"log": "sliding-window-log 1/minute", "other": "fixed-window 9/minute"}, cost={"log": 1, "other": 0}
    )
    assert fields(limited, limited.admit(a_request()))["RateLimit"] == '"log";r=0;t=60'

"""ratekeeper: exact rate limiting with one complete answer.

    >>> from ratekeeper import Limiter, TokenBucket
    >>> limiter = Limiter(TokenBucket(capacity=20, refill_rate=10))
    >>> limiter.hit("user:42", cost=3).remaining
    17

Reading order:

- `decision` is the answer, and `errors` are the exceptions.
- `algorithms/` holds the five rules, each a pure step in one file. `rates` and `rules` read them from text
  or make them from fields.
- `stores/protocol` is what a limiter asks of a store; `stores/` are the stores that implement it.
- `limiter` is what applications use; `base_limiter` has what both limiters share. `ruleset`, `arguments` and `keys`
  turn a call into demands on a store, and the store's answers into a decision; `decorators` limits functions.
- `leases` and `fallback` are layers between a limiter and a store that may be away; `notices` counts what they decide.
  `enforcement` is where the rules of a limiter are in force, and `observers` are told of its decisions.
- `reservations` are hits that can be given back or corrected.
- `waiting` is how a caller waits, and `queues` are the order in which callers are served. `forecasts` tell whose wait
  is hopeless, and `event_loops` what becomes of a caller whose event loop is closed.
- `flows` runs logic that is written once in threads and in tasks; `clock` provides the time; `forks` renews locks and
  connections in a forked child; `testing` has helpers for your tests.
- `policies/` are rules in a file, which a team changes without a deployment.
- `metrics/` are the figures of limiters, for Prometheus and OpenTelemetry.
- `http/` and `integrations/` limit web applications and clients.
- `service/` is the HTTP service, and `playground/` its page. `cli`, which `__main__` also runs, is the command line:
  `commands` has `hit` and its like, `command_targets` what they work on, `policy_commands` and `override_commands`
  those for policies and overrides, `top_command` the top talkers, `simulate/` the simulation, and `completion_command`
  what shells complete by. `subcommands` is what all commands share, and `service_client` asks a running service;
  `command_parser` reads arguments and the environment. `spelling` finds what was meant by a wrong word, and
  `inspections` are keys as plain data.
"""

from ratekeeper.algorithms import FixedWindow, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidRule, RatekeeperError, RateLimited, StoreUnavailable
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.rules import parse, rule

__all__ = [
    "AsyncLimiter",
    "Decision",
    "FixedWindow",
    "InvalidRule",
    "LeakyBucket",
    "Limiter",
    "RateLimited",
    "RatekeeperError",
    "SlidingWindowCounter",
    "SlidingWindowLog",
    "StoreUnavailable",
    "TokenBucket",
    "parse",
    "rule",
]
__version__ = "0.1.0"

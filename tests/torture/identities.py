"""Drills on keys in Redis: very many, and hostile ones."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import math
import random
import time
from typing import Any

import redis

from ratekeeper import AsyncLimiter, Decision, FixedWindow, Limiter, StoreUnavailable
from ratekeeper.http import by_address, by_api_key, by_header, by_path, parse_headers
from ratekeeper.stores import MemoryStore
from tests.http.requests import a_request
from tests.servers import RedisServer
from tests.torture import progress
from tests.torture.redis import STRICT, own_server, rules_of

LIMIT = 10**12


def million(keys: int = 1_000_000, sample: int = 5_000) -> str:
    """A million distinct keys: each has a TTL that ends with its use, and takes few bytes."""
    server = own_server()
    chance = random.Random(1)
    try:
        with redis.Redis(port=server.port) as client:
            before = client.info("memory")["used_memory"]
            told = asyncio.run(_fill(server, keys))
            taken = client.info("memory")["used_memory"] - before
            keyspace = client.info("keyspace")["db0"]
            names = chance.sample(client.keys(), sample)
            assert (keyspace["keys"], keyspace["expires"]) == (keys, keys), f"{keyspace} of {keys:,} keys"
            late = 0.0
            for name in names:
                number = int(name.rpartition(b"{")[2].rstrip(b"}"))
                at, decision = told[number]
                ttl = client.pttl(name) / 1000
                late = max(late, time.monotonic() + ttl - at - decision.reset_after)
                assert ttl > 0, f"{name!r} has no TTL"
    finally:
        server.stop()
    assert late < 1, f"a key outlives its use by {late:.3f} s"
    return f"{keys:,} keys, all with a TTL that ends at most {late * 1000:.0f} ms late, {taken / keys:.0f} bytes each"


async def _fill(server: RedisServer, keys: int) -> list[tuple[float, Decision]]:
    """Hit each key once; the keys take turns in the rules."""
    told: list[tuple[float, Decision]] = []
    limiters = [AsyncLimiter(rule, server.url, prefix=f"r{n}", **STRICT) for n, rule in enumerate(rules_of(100))]
    for first in range(0, keys, 1_000):
        numbers = range(first, min(first + 1_000, keys))
        limiter = limiters[first // 1_000 % len(limiters)]
        decisions = await asyncio.gather(*(limiter.hit(str(number)) for number in numbers))
        now = time.monotonic()
        told += ((now, decision) for decision in decisions)
        if first % 50_000 == 0:
            progress("million", f"{first:,} of {keys:,} keys")
    for limiter in limiters:
        await limiter.close()
    assert all(decision.allowed and not decision.degraded for _, decision in told), "a fresh key was denied"
    return told


def fuzzed(keys: int = 200_000, seed: int = 1) -> str:
    """Hostile keys, names and costs: no crash, and no two keys share their usage."""
    server = own_server()
    hostile = _hostile(keys, random.Random(seed))
    try:
        with redis.Redis(port=server.port) as client:
            asyncio.run(_hit_each_twice(server, hostile))
            stored = client.dbsize()
            assert stored == len(hostile), f"{stored:,} keys are stored for {len(hostile):,} identities"
            pairs = _hit_hostile_names(server)
            stored = client.dbsize() - stored
            assert stored == pairs, f"{stored} keys are stored for {pairs} pairs of prefix and name"
        _hit_at_hostile_costs(server)
    except StoreUnavailable as error:
        raise AssertionError(f"the script refused a key or a cost: {error}") from error
    finally:
        server.stop()
    return f"{len(hostile):,} hostile keys and {pairs} pairs of prefix and name, each with usage of its own"


async def _hit_each_twice(server: RedisServer, keys: list[Any]) -> None:
    async with AsyncLimiter(FixedWindow(LIMIT, "365d"), server.url, **STRICT) as limiter:
        for turn in (1, 2):
            for first in range(0, len(keys), 500):
                batch = list(enumerate(keys[first : first + 500], first + 1))
                decisions = await asyncio.gather(*(limiter.hit(key, cost) for cost, key in batch))
                for (cost, key), decision in zip(batch, decisions, strict=True):
                    used = LIMIT - decision.remaining
                    assert used == turn * cost, f"{key!r} has used {used}, not {turn} times {cost}"


def _hit_hostile_names(server: RedisServer) -> int:
    texts = ["a", "b", "a:b", "a:fw:b", "{", "}", "{a}", "a}", "%", "%3A", ":", "\0", "\n", "\ud800", "é", "a" * 100]
    pairs = [(prefix, name) for prefix in texts for name in texts]
    for prefix, name in pairs:
        with Limiter({name: FixedWindow(5, "365d")}, server.url, prefix=prefix, **STRICT) as limiter:
            decision = limiter.hit("k")
            assert decision.remaining == 4, f"prefix {prefix!r}, name {name!r}: {decision}"
    return len(pairs)


def _hit_at_hostile_costs(server: RedisServer) -> None:
    for rule in rules_of(100):
        with Limiter(rule, server.url, prefix="costs", **STRICT) as limiter:
            for cost in (101, 2**31, 2**43 - 1, 2**43, 2**53 + 1, 2**63, 2**64, 10**30, 10**300):
                decision = limiter.hit("k", cost)
                seen = decision.allowed, decision.remaining, decision.retry_after
                assert seen == (False, 100, math.inf), f"{rule.text}, cost {cost}: {decision}"
            limiter.charge("charged", 10**300)
            assert not limiter.hit("charged"), f"{rule.text}: admitted after a charge of 10^300"
            limiter.refund("charged", 10**300)
            assert limiter.hit("charged", 100), f"{rule.text}: denied after a refund of everything"


_PIECES = (
    *("a", "b", "{", "}", "{}", "}{", "{a}", "%", "%7B", "%t", "%i", "%b", "%h", ":", "1:a", "\0", "\n", "\r\n", " "),
    *("\ud800", "\udfff", "é", "e\u0301", "\u2028", "\x7f", "\x1f", "1", "0", "-1", "*", "?", "ratekeeper:fw:", "😀"),
)


def _hostile(count: int, chance: random.Random) -> list[Any]:
    """Make distinct keys that are easily confused."""

    def text() -> str:
        return "".join(chance.choices(_PIECES, k=chance.choice((1, 1, 2, 3, 5, 30))))

    def part() -> str | bytes | int:
        kind = chance.randrange(4)
        if kind == 0:
            return chance.choice((chance.randrange(-100, 100), chance.getrandbits(64), -chance.getrandbits(2_000)))
        if kind == 1:
            return text().encode("utf-8", "surrogatepass")
        return text()

    def key() -> Any:
        kind = chance.randrange(8)
        if kind == 0:
            return "long" * 240 + text()[:10]  # alike but for the end
        if kind < 4:
            return tuple(part() for _ in range(chance.randrange(1, 5)))
        return part()

    found: dict[Any, None] = {}
    long = "x" * 200
    for known in (1, "1", b"1", (1,), ("1",), "%i1", "%b1", "%t1:1", "%25i1", ("a/b", "c"), ("a", "b/c"), ("ab", "c")):
        found[known] = None
    found[long] = found["%h" + hashlib.blake2b(long.encode(), digest_size=16).hexdigest()] = None
    while len(found) < count:
        found[key()] = None
    return list(found)


_NOISE = (
    *_PIECES,
    *(",", ";", "=", '"', "\\", "for=", 'for="', "r=0", "t=1", "q=", "[", "::1", "1.2.3.4", "10.0.0.1", "::ffff:"),
    *("unknown", "Sun, 06 Nov 1994 08:49:37 GMT", "9" * 30, "1e9", "inf", "nan", "x" * 5_000),
)
_TOLD = ("RateLimit", "RateLimit-Policy", "Retry-After", "Date", "X-RateLimit-Remaining", "X-RateLimit-Reset")


def headers(requests: int = 50_000, seed: int = 1) -> str:
    """Hostile headers: no crash, no second key for one client, and no key that a limiter does not accept."""
    chance = random.Random(seed)
    store = MemoryStore(max_keys=1_000)
    limiter = Limiter(FixedWindow(LIMIT, "365d"), store)
    proxies = ("10.0.0.0/8", "2001:db8:ffff::/48")
    direct, behind = by_address(), {name: by_address(proxies, header=name) for name in ("x-forwarded-for", "forwarded")}
    others = (by_api_key("x-key"), by_api_key("x-key", scheme="Bearer"), by_header("x-key"), by_path())

    def noise() -> str:
        return "".join(chance.choices(_NOISE, k=chance.randrange(10)))

    for _ in range(requests):
        address = chance.choice((ipaddress.IPv4Address(chance.randrange(11 << 24, 224 << 24)), _ipv6(chance)))
        client = direct(a_request(peer=str(address)))
        bracketed = f"[{address}]" if address.version == 6 else address
        said = {"x-forwarded-for": f"{noise()}, {address}, 10.1.2.3", "forwarded": f'{noise()}, for="{bracketed}"'}
        made_up = {"x-forwarded-for": f"{noise()}, 192.0.2.9", "forwarded": f"{noise()}, for=192.0.2.9"}
        for name, key in behind.items():
            seen = key(a_request(peer="10.0.0.1", headers=[(name, said[name])]))
            assert seen == client, f"{name}: {said[name]!r} behind a proxy is {seen}, not {client}"
            seen = key(a_request(peer=str(address), headers=[(name, made_up[name])]))
            assert seen == client, f"{name}: {made_up[name]!r} of {client} itself is {seen}"
        request = a_request(path="/" + noise(), headers=[("x-key", f"{chance.choice(('', 'Bearer '))}{noise()}")])
        for key in others:
            name = key(request)
            assert name is None or limiter.hit(name), f"{name!r} was denied"
        wait = parse_headers([(chance.choice(_TOLD), noise()) for _ in range(4)]).wait
        assert 0 <= wait < math.inf, f"a server is waited for {wait} s"
    assert store.size <= 1_000, f"{store.size:,} keys in a store of 1,000"
    return f"{requests:,} requests with hostile headers, each its client's own"


def _ipv6(chance: random.Random) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(0x2A << 120 | chance.getrandbits(120))


DRILLS = {"million": million, "fuzzed": fuzzed, "headers": headers}

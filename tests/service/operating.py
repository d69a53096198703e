"""Operators' calls, and processes of a fleet: applications on one store, which look when a test says so."""

import asyncio
import functools

import redis

from ratekeeper.service.store_time import StoreTime
from ratekeeper.service.versioned_values import VersionedValue
from ratekeeper.stores import MemoryStore
from tests.service.serving import InProcess


def text(limit="fixed-window 5/day", name="api", key="{user}"):
    return f"""
[[policies.{name}.rules]]
name = "user"
limit = "{limit}"
key = "{key}"
"""


class Process(InProcess):
    """A process that looks for what others have changed only when it is told to."""

    def __init__(self, store=None, policies="store", **options):
        super().__init__(
            store=MemoryStore() if store is None else store, policies=policies, playground=False, **options
        )
        self.app.service.policies.following = Never()

    @property
    def store(self):
        return self.app.service.store

    @property
    def administration(self):
        return self.app.service.administration

    def look(self):
        async def look():
            await self.administration.source.look()
            await self.administration.overrides.look()

        self.run(look())

    def run(self, coming):
        """Run a coroutine, and close the connections that it needed."""

        async def run():
            try:
                return await coming
            finally:
                if not isinstance(self.store, MemoryStore):
                    await self.app.close()

        return asyncio.run(run())

    def ask(self, method, path, **arguments):
        return self.run(self.asking(method, path, **arguments))

    put = functools.partialmethod(ask, "PUT")
    get = functools.partialmethod(ask, "GET")
    post = functools.partialmethod(ask, "POST")

    def put_policies(self, content, version, **headers):
        if isinstance(content, str):
            content = content.encode()
        return self.put("/v1/policies", content=content, headers={"if-match": str(version), **headers})

    def in_force(self):
        """The version in force, without a look."""
        edition = self.app.service.policies.edition
        return None if edition is None else edition.version

    def remaining(self, policy="api", **attributes):
        return self.post("/v1/peek", json={"policy": policy, "attributes": {"user": "ada", **attributes}}).json()[
            "remaining"
        ]

    def hit(self, policy="api", cost=1, **attributes):
        body = {"policy": policy, "attributes": {"user": "ada", **attributes}, "cost": cost}
        return self.post("/v1/hit", json=body)


class Never:
    """Follows nothing by itself."""

    @property
    def loop(self):
        return asyncio.get_running_loop()

    def end(self):
        pass


def forget(server):
    """Forget what a server keeps for the service."""
    for each in getattr(server, "masters", [server]):
        client = redis.from_url(each.url)
        for name in client.scan_iter("ratekeeper:*"):
            client.delete(name)
        client.close()


def rewrite(process, name, change):
    """Replace what processes share by what another version of the program might write."""

    async def run():
        value = VersionedValue(process.store.for_asyncio(), name, StoreTime())
        await value.look()
        assert await value.replace(change(value.known.content))

    process.run(run())

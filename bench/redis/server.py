"""The Redis server under measurement, and what it says of itself."""

from functools import cache
from time import sleep

import redis

from tests import servers


class Server:
    """A redis-server process that keeps nothing on disk, with a client of its own to ask it about itself."""

    def __init__(self) -> None:
        self._process = servers.RedisServer(servers.programs()[servers.newest()])
        self.url = self._process.url
        self.client = redis.Redis.from_url(self.url)

    def empty(self) -> None:
        self.client.flushall()

    def processor_us(self) -> float:
        """Microseconds that the server has spent on the processor so far."""
        spent = self.client.info("cpu")
        return (spent["used_cpu_user"] + spent["used_cpu_sys"]) * 1e6

    def memory(self) -> int:
        """Bytes in use, once a hash table that is growing has grown."""
        before = -1
        while True:
            used = self.client.info("memory")["used_memory"]
            if abs(used - before) < 4096:
                return used
            before = used
            sleep(0.2)  # twice what the server waits between two looks at its tables

    def stop(self) -> None:
        self.client.close()
        self._process.stop()


@cache
def server() -> Server:
    """The server that all suites share; each sample begins with an empty one. It ends with this process."""
    return Server()

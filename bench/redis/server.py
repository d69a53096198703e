"""The measured Redis server and its own statistics."""

from functools import cache
from time import sleep

import redis

from tests import servers


class Server:
    """A redis-server process without persistence, with a client for its statistics."""

    def __init__(self) -> None:
        self._process = servers.RedisServer(servers.programs()[servers.newest()])
        self.url = self._process.url
        self.client = redis.Redis.from_url(self.url)

    def empty(self) -> None:
        self.client.flushall()

    def processor_us(self) -> float:
        """Return the CPU microseconds that the server has used so far."""
        spent = self.client.info("cpu")
        return (spent["used_cpu_user"] + spent["used_cpu_sys"]) * 1e6

    def memory(self) -> int:
        """Return the bytes in use, once the server has finished growing its hash tables."""
        before = -1
        while True:
            used = self.client.info("memory")["used_memory"]
            if abs(used - before) < 4096:
                return used
            before = used
            sleep(0.2)  # twice the interval at which the server checks its tables

    def stop(self) -> None:
        self.client.close()
        self._process.stop()


@cache
def server() -> Server:
    """Return the server that all suites share; each sample empties it first. It ends with this process."""
    return Server()

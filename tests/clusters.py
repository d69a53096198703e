"""Redis Cluster and Sentinel, made of real servers on free ports."""

from __future__ import annotations

import atexit
import contextlib
import functools
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from tests.servers import PATIENCE, RedisServer, free_port, programs

SLOTS = 16_384
_NODE_TIMEOUT = "1000"  # milliseconds until the others consider a node failed


class ClusterOfServers:
    """Three masters, each with as many replicas as asked for."""

    def __init__(self, program: Path, masters: int = 3, replicas: int = 0) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", _NODE_TIMEOUT)
        self.masters = [RedisServer(program, *options, port=cluster_port()) for _ in range(masters)]
        self.replicas = [RedisServer(program, *options, port=cluster_port()) for _ in range(masters * replicas)]
        self.servers = [*self.masters, *self.replicas]
        first = client(self.masters[0])
        for number, server in enumerate(self.masters):
            own = range(number * SLOTS // masters, (number + 1) * SLOTS // masters)
            client(server).execute_command("CLUSTER ADDSLOTS", *own)
        for server in self.servers[1:]:
            first.execute_command("CLUSTER MEET", "127.0.0.1", server.port)
        until(
            lambda: all(len(self.nodes(server)) == len(self.servers) for server in self.servers), "all nodes have met"
        )
        for number, server in enumerate(self.replicas):
            client(server).execute_command("CLUSTER REPLICATE", self.id_of(self.masters[number % masters]))
        until(lambda: all(map(_is_well, self.servers)), "the cluster is well")
        until(lambda: all(self.replicates(server) for server in self.replicas), "the replicas follow")

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def nodes(self, server: RedisServer) -> Any:
        """Return what a server knows about the nodes."""
        return client(server).execute_command("CLUSTER NODES")

    def id_of(self, server: RedisServer) -> str:
        return client(server).execute_command("CLUSTER MYID").decode()

    def replicates(self, server: RedisServer) -> bool:
        """Tell whether a replica has everything that its master had."""
        return client(server).info("replication").get("master_link_status") == "up"

    def holder(self, slot: int) -> RedisServer:
        """Return the master that has a slot."""
        port = _port_of(slot, self.running()[0])
        return next(server for server in self.servers if server.port == port)

    def running(self) -> list[RedisServer]:
        return [server for server in self.servers if server.is_running]

    def begin_to_move(self, slot: int, to: RedisServer) -> RedisServer:
        """Begin to move a slot to another master; return the one that it comes from."""
        source = self.holder(slot)
        client(to).execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.id_of(source))
        client(source).execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.id_of(to))
        return source

    def move_keys(self, slot: int, source: RedisServer, to: RedisServer, most: int = 1000) -> int:
        """Move keys of a slot; return how many."""
        names = client(source).execute_command("CLUSTER GETKEYSINSLOT", slot, most)
        if names:
            client(source).execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *names)
        return len(names)

    def end_move(self, slot: int, to: RedisServer) -> None:
        """Assign a slot to another master, repeatedly until all masters know it: they may spread old information."""
        masters = [to, *(server for server in self.masters if server is not to)]
        new = self.id_of(to)

        def all_know() -> bool:
            for server in masters:
                client(server).execute_command("CLUSTER SETSLOT", slot, "NODE", new)
            return all(_port_of(slot, server) == to.port for server in masters)

        until(all_know, f"slot {slot} has moved")

    def move(self, slot: int, to: RedisServer) -> None:
        """Move a slot with its keys, whether or not that has begun."""
        source = self.begin_to_move(slot, to)
        self.move_keys(slot, source, to)
        self.end_move(slot, to)

    def totals(self) -> int:
        """Return the number of keys on all masters."""
        return sum(client(server).dbsize() for server in self.masters)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


class Sentinels:
    """A master, a replica and three sentinels that watch them."""

    name = "the-master"

    def __init__(self, program: Path) -> None:
        self.servers = [RedisServer(program, "--repl-diskless-sync-delay", "0"), RedisServer(program)]
        client(self.servers[1]).replicaof("127.0.0.1", self.servers[0].port)
        self._directory = tempfile.TemporaryDirectory(prefix="ratekeeper-sentinel-")
        self._processes: list[subprocess.Popen[bytes]] = []
        atexit.register(self.stop)
        self.ports = [free_port() for _ in range(3)]
        for port in self.ports:
            file = Path(self._directory.name, f"{port}.conf")
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self._directory.name}\n"
                f"sentinel monitor {self.name} 127.0.0.1 {self.servers[0].port} 2\n"
                f"sentinel down-after-milliseconds {self.name} 500\nsentinel failover-timeout {self.name} 2000\n"
            )
            self._processes.append(
                subprocess.Popen([program, file, "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
        until(lambda: all(self._sees_all(port) for port in self.ports), "the sentinels have met")
        until(lambda: client(self.servers[1]).info("replication")["master_link_status"] == "up", "the replica follows")

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.ports)}/{self.name}"

    @property
    def master(self) -> RedisServer:
        """The master, according to the sentinels."""
        with redis.Redis(port=self.ports[0]) as sentinel:
            _, port = sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.name)
        return next(server for server in self.servers if server.port == int(port))

    def fail_over(self) -> None:
        """Make the replica the master, while both are healthy."""
        with redis.Redis(port=self.ports[0]) as sentinel:
            sentinel.execute_command("SENTINEL FAILOVER", self.name)

    def _sees_all(self, port: int) -> bool:
        with redis.Redis(port=port) as sentinel:
            state = sentinel.execute_command("SENTINEL MASTER", self.name)
        return (state["num-slaves"], state["num-other-sentinels"]) == (1, 2)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()
        for server in self.servers:
            server.stop()


def client(server: RedisServer) -> redis.Redis:
    """Return a client of one server."""
    if server not in _clients:
        _clients[server] = redis.Redis(port=server.port)
    return _clients[server]


_clients: dict[RedisServer, redis.Redis] = {}


def _port_of(slot: int, server: RedisServer) -> int:
    """Return the port of the master that has a slot, as far as a server knows."""
    ranges = client(server).execute_command("CLUSTER SLOTS")
    port: int = next(master[1] for first, last, master, *_ in ranges if first <= slot <= last)
    return port


def _is_well(server: RedisServer) -> bool:
    said: dict[str, str] = client(server).execute_command("CLUSTER INFO")
    return said["cluster_state"] == "ok"


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until the servers agree."""
    give_up = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(redis.RedisError):
            if condition():
                return
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.02)


def cluster_port() -> int:
    """Return a free port whose neighbour, ten thousand above, is free for the cluster bus."""
    while True:
        port = free_port()
        if port + 10_000 < 65_536:
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port + 10_000))
                return port


@functools.cache
def shared_cluster(version: str) -> ClusterOfServers:
    """Return the cluster of this version that all tests share; each keeps to keys of its own."""
    return ClusterOfServers(programs()[version])

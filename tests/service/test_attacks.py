"""Every attack of the list, through a real server: the expected answer, soon, and nothing has changed. And floods.

Slow clients are in test_slow_clients.
"""

import contextlib
import os
import socket
import sys
from pathlib import Path

import pytest

from ratekeeper import parse
from tests import servers
from tests.servers import PATIENCE
from tests.service import attacks
from tests.service.serving import Served

TOKEN = {"authorization": "Bearer open sesame"}
MAX_SECONDS = 2  # CPU time for one request of up to 64 KiB, with coverage; a larger one may take as much more
USAGE = {"key": attacks.VICTIM, "rules": {text: text for text in attacks.RULES}}
MIB = 2**20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


PATIENT = """
import sys
from ratekeeper.cli import main
from ratekeeper.service import rsgi
rsgi.BODY_SECONDS = 100  # a body of many chunks takes long on a busy machine
sys.exit(main(["serve", *sys.argv[1:]]))
"""


class Attacked(Served):
    """A service with a token, whose victim has used 4 of 10 of each rule."""

    def __init__(self, store):
        command = [sys.executable, "-c", PATIENT]
        super().__init__(store, "--deadline", "30", command=command, RATEKEEPER_TOKEN="open sesame")
        assert self.ask("POST", "/v1/reset", json=USAGE, headers=TOKEN).status_code == 200
        assert self.ask("POST", "/v1/hit", json=USAGE | {"cost": 4}).status_code == 200

    def exchange(self, sent):
        """Send bytes on a connection of their own, and return the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            with contextlib.suppress(ConnectionError):  # it may be closed before all is sent
                connection.sendall(sent)
            with contextlib.suppress(ConnectionError):
                return connection.recv(65_536)
            return b""

    def usage(self):
        layers = self.ask("POST", "/v1/peek", json=USAGE).json()["layers"]
        return {name: 10 - layer["remaining"] for name, layer in layers.items()}

    def seconds(self):
        """The CPU time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def bytes(self):
        """The memory that the process uses."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def flood(self, requests):
        """Send requests one after another on one connection; return how often each status was the answer."""
        statuses = {}
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection,
            connection.makefile("rb") as answers,
        ):
            for request in requests:
                connection.sendall(request)
                status = int(answers.readline().split()[1])
                statuses[status] = statuses.get(status, 0) + 1
                length = 0
                while (line := answers.readline()) != b"\r\n":
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                answers.read(length)
        return statuses


@pytest.fixture(scope="module", params=["memory", "Redis"])
def attacked(request):
    attacked = Attacked("memory://" if request.param == "memory" else servers.shared(servers.newest()).url)
    yield attacked
    assert attacked.stop() == 0


EVERY = {f"{kind}: {what}": attack for kind, attacks_ in attacks.LISTS.items() for what, attack in attacks_.items()}


@pytest.mark.parametrize("what", EVERY)
def test_an_attack_is_answered_as_expected_and_changes_nothing(attacked, what):
    sent, expected = EVERY[what]
    before = attacked.seconds() if sys.platform == "linux" else 0
    answer = attacked.exchange(sent)
    taken = attacked.seconds() - before if sys.platform == "linux" else 0
    status = int(answer.split()[1]) if answer else attacks.CLOSED
    most = MAX_SECONDS * max(1, len(sent) / 65_536)
    assert (status, taken < most) == (expected, True), answer
    assert b"\r\nset-cookie: injected" not in answer
    assert b"Traceback" not in answer
    assert attacked.usage() == dict.fromkeys(attacks.RULES, 4)


def test_the_victims_rules_are_written_as_they_are_stored():
    assert [parse(text)[0].text for text in attacks.RULES] == attacks.RULES


@pytest.fixture
def flooded():
    """A service of its own, because a flood leaves keys behind."""
    flooded = Attacked("memory://")
    yield flooded
    assert flooded.usage() == dict.fromkeys(attacks.RULES, 4)
    assert flooded.stop() == 0


@on_linux
def test_a_made_up_key_takes_at_most_8_kib(flooded):
    def key(number):
        return [f"{number:05}" + "\N{CRAB}" + "x" * 53] * 15 + ["\N{CRAB}" + "y" * 90]

    def request(number):
        return attacks.hit(key=key(number), rule="sliding-window-log 1000/30d", cost=1)

    assert len("".join(key(0)).encode()) == 1024
    assert flooded.flood([request(0)] * 200) == {200: 200}
    before = flooded.bytes()
    assert flooded.flood(map(request, range(1, 4_001))) == {200: 4_000}
    assert flooded.bytes() - before < 4_000 * 8 * 1024


@on_linux
def test_made_up_rules_take_a_bounded_number_of_bytes(flooded):
    def request(number):
        return attacks.named("\N{CRAB}" * 100, f"fixed-window {number + 1}/us", key="mallory")

    assert flooded.flood(map(request, range(1_500))) == {200: 1_500}
    before = flooded.bytes()
    assert flooded.flood(map(request, range(1_500, 4_500))) == {200: 3_000}
    assert flooded.bytes() - before < 4 * MIB


@on_linux
def test_made_up_hosts_paths_and_visitors_take_a_bounded_number_of_bytes(flooded):
    def requests(numbers):
        for number in numbers:
            yield attacks.http(f"GET /{number}", host=f"host: 10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
            yield attacks.post("/api/rate-limit/fixed-window", {"config": {"maxRequests": 5 + number}})

    assert flooded.flood(requests(range(500))) == {404: 500, 200: 500}
    before = flooded.bytes()
    assert flooded.flood(requests(range(500, 2_500))) == {404: 2_000, 200: 2_000}
    assert flooded.bytes() - before < 2_000 * 8 * 1024


@on_linux
def test_made_up_keys_that_python_hashes_alike_take_no_longer_than_others(flooded):
    def requests(step):
        for number in range(3_000):
            yield attacks.hit(key=[2**400] * 15 + [number * step], rule="fixed-window 5/30d", cost=1)

    seconds = []
    for step in (1, sys.hash_info.modulus):
        before = flooded.seconds()
        assert flooded.flood(requests(step)) == {200: 3_000}
        seconds.append(flooded.seconds() - before)
    others, alike = seconds
    assert alike < 2 * others

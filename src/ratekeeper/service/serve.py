"""`ratekeeper serve`: the HTTP service in one process."""

from __future__ import annotations

import argparse
import asyncio
import errno
import gc
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.service import DEADLINE

if TYPE_CHECKING:
    from ratekeeper.service.app import App

    Commands = argparse._SubParsersAction[Any]  # noqa: SLF001 - it has no public name

FAILED = 2
MOST_CONNECTIONS = 1024
MOST_HEADER_BYTES = 16 * 1024
GRACE = 5.0  # seconds for what is under way when the service is told to end
_EPILOG = """\
The token is the content of --token-file or of the environment's RATEKEEPER_TOKEN. Beyond loopback there must be one:
who does not send it can hit, peek and inspect, and change nothing else.

example:
  ratekeeper serve --store redis://localhost:6379/0
  curl http://localhost:8080/v1/hit --json '{"key": "ada", "rule": "10/minute"}'
"""


def add(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "serve",
        help="answer over HTTP, with a page that shows the algorithms at work",
        description="Answer over HTTP, with a page that shows the algorithms at work.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="the port to listen on (default: %(default)s)")
    parser.add_argument(
        "--store", default="memory://", metavar="URL", help="where state is kept, such as redis://... (default: memory)"
    )
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=DEADLINE,
        metavar="SECONDS",
        help="how long Redis has for a decision; then this process decides (default: %(default)s)",
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="a file that holds the token")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that it is reached by, besides localhost and addresses; repeatable",
    )
    parser.set_defaults(run=run)


def seconds(text: str) -> float:
    """Read a number of seconds."""
    read = float(text)
    if not 0 < read < float("inf"):
        raise ValueError(text)
    return read


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, and give the exit status."""
    try:
        token = read_token(options.token_file)
        if token is None and not is_loopback(options.host):
            return _fail(f"--host {options.host} is open to others: give it a --token-file or set RATEKEEPER_TOKEN")
        address = find_address(options.host, options.port)
        from ratekeeper.service.app import create_app

        app = create_app(options.store, token=token, hosts=options.allow_host, deadline=options.deadline)
    except ImportError as error:
        return _fail(f"{error.name} is missing: pip install 'ratekeeper[server]'")
    except (InvalidRule, StoreUnavailable, ValueError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"cannot read {options.token_file}: {error.strerror}")
    _raise_the_limit_of_files()
    gc.collect()
    gc.freeze()  # what is there now stays: the collector need not go through it again and again
    _loop_runner()(_serve(app, address, options.port))
    return 0


def _loop_runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        from uvloop import run as run_loop
    except ImportError:  # there is none for Windows
        return asyncio.run
    return run_loop


def _raise_the_limit_of_files() -> None:
    """Make room for all connections: many systems let a process have no more than 1024 files unless it asks."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        enough = 2 * MOST_CONNECTIONS
        if soft != resource.RLIM_INFINITY and soft < enough:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(enough, hard) if hard >= 0 else enough, hard))


async def _serve(app: App, address: str, port: int) -> None:
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.server.embed import Server

    from ratekeeper.service.rsgi import Rsgi

    server = Server(
        Rsgi(app),
        address=address,
        port=port,
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=MOST_CONNECTIONS,
        backpressure=MOST_CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=10_000, max_buffer_size=MOST_HEADER_BYTES),
        log_enabled=False,
    )
    loop = asyncio.get_running_loop()

    def stop() -> None:
        """Finish what has begun, but do not wait for ever for somebody who does not send the rest of a request."""
        server.stop()  # type: ignore[no-untyped-call]
        loop.call_later(GRACE, os._exit, 0)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    print(f"ratekeeper is at {_places(address, port)} (Ctrl-C ends it)", flush=True)
    await server.serve()
    await app.close()


def _places(address: str, port: int) -> str:
    if ipaddress.ip_address(address).is_unspecified:
        return f"http://localhost:{port}/ and all addresses of this machine"
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/"


def read_token(path: Path | None) -> str | None:
    """Return the token of a file or of the environment, if there is one."""
    given = os.environ.get("RATEKEEPER_TOKEN") if path is None else path.read_text("utf-8")
    if given is None:
        return None
    token = given.strip()
    if not token:
        raise ValueError("the token is empty")
    return token


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_address(host: str, port: int) -> str:
    """Return the address of a host if one can listen there; granian would share a port with another granian."""
    if not 1 <= port <= 65_535:
        raise ValueError(f"--port must be from 1 to 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is taken; end what uses it, or choose another with --port") from None
        raise ValueError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    return str(address[0])


def _fail(message: str) -> int:
    print(f"ratekeeper serve: {' '.join(message.split())}", file=sys.stderr)
    return FAILED

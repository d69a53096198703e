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
from ratekeeper.subcommands import add_command

if TYPE_CHECKING:
    from ratekeeper.service.app import App
    from ratekeeper.subcommands import Subcommands

FAILED = 2
MAX_CONNECTIONS = 1024
MAX_HEADER_BYTES = 16 * 1024
GRACE = 5.0  # seconds that requests in progress have when the service is stopped
_EPILOG = """\
The token is read from --token-file or from the environment variable RATEKEEPER_TOKEN. It is required unless --host
is a loopback address. Clients that do not send it can hit and peek, but not change or see anything else.

example:
  ratekeeper serve --store redis://localhost:6379/0
  curl http://localhost:8080/v1/hit --json '{"key": "ada", "rule": "10/minute"}'
"""


def add(commands: Subcommands) -> None:
    """Add the command to the command line."""
    summary = "run the HTTP service, with a page that shows the algorithms at work"
    parser = add_command(commands, "serve", summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=_EPILOG)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on (default: %(default)s)")
    parser.add_argument(
        "--store",
        default="memory://",
        metavar="URL",
        help="URL of the store, such as redis://localhost:6379/0 or sqlite:///path/to/limits.db (default: memory://)",
    )
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=DEADLINE,
        metavar="SECONDS",
        help="seconds to wait for the store before this process decides on its own (default: %(default)s)",
    )
    parser.add_argument("--policies", type=Path, metavar="FILE", help="policy file, in TOML, YAML or JSON")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file that contains the token")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name by which clients reach the service, besides localhost and IP addresses; may be repeated",
    )
    parser.set_defaults(run=run)


def seconds(text: str) -> float:
    """Read a number of seconds."""
    read = float(text)
    if not 0 < read < float("inf"):
        raise ValueError(text)
    return read


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, and return the exit status."""
    try:
        token = read_token(options.token_file)
        if token is None and not is_loopback(options.host):
            return _fail(f"--host {options.host} is open to other machines; use --token-file or set RATEKEEPER_TOKEN")
        address = find_address(options.host, options.port)
        from ratekeeper.service.app import create_app

        app = create_app(
            options.store,
            token=token,
            hosts=options.allow_host,
            deadline=options.deadline,
            policies=options.policies,
        )
    except ImportError as error:
        return _fail(f"{error.name} is missing: pip install 'ratekeeper[server]'")
    except (InvalidRule, StoreUnavailable, ValueError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"cannot read {options.token_file}: {error.strerror}")
    _raise_file_limit()
    gc.collect()
    gc.freeze()  # these objects stay alive, so the collector need not visit them again
    _loop_runner()(_serve(app, address, options.port))
    return 0


def _loop_runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        from uvloop import run as run_loop
    except ImportError:  # not available on Windows
        return asyncio.run
    return run_loop


def _raise_file_limit() -> None:
    """Allow enough open files for all connections; many systems start processes with a limit of 1024."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        enough = 2 * MAX_CONNECTIONS
        if soft != resource.RLIM_INFINITY and soft < enough:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(enough, hard) if hard >= 0 else enough, hard))


async def _serve(app: App, address: str, port: int) -> None:
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.server.embed import Server

    from ratekeeper.service.connections import Connections
    from ratekeeper.service.rsgi import Rsgi

    connections = Connections(port, MAX_CONNECTIONS)
    server = Server(
        Rsgi(app, connections),
        address=address,
        port=port,
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=MAX_CONNECTIONS,
        backpressure=MAX_CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=10_000, max_buffer_size=MAX_HEADER_BYTES),
        log_enabled=False,
    )
    loop = asyncio.get_running_loop()

    def stop() -> None:
        """Finish the requests under way, but do not wait forever for a client that never sends the rest of one."""
        server.stop()  # type: ignore[no-untyped-call]
        loop.call_later(GRACE, os._exit, 0)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    connections.watch(loop)
    print(f"Listening on {_urls(address, port)} (press Ctrl-C to stop)", flush=True)
    await server.serve()
    await app.close()


def _urls(address: str, port: int) -> str:
    if ipaddress.ip_address(address).is_unspecified:
        return f"http://localhost:{port}/ and on all addresses of this machine"
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/"


def read_token(path: Path | None) -> str | None:
    """Return the token from a file or the environment, if there is one."""
    given = os.environ.get("RATEKEEPER_TOKEN") if path is None else path.read_text("utf-8")
    if given is None:
        return None
    token = given.strip()
    if not token:
        raise ValueError("the token is empty")
    return token


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_address(host: str, port: int) -> str:
    """Return the address of a host after checking that it is free: two granian servers could share one port."""
    if not 1 <= port <= 65_535:
        raise ValueError(f"--port must be from 1 to 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is already in use; choose another with --port") from None
        raise ValueError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    return str(address[0])


def _fail(message: str) -> int:
    for line in message.splitlines():
        print(f"ratekeeper serve: {' '.join(line.split())}", file=sys.stderr)
    return FAILED

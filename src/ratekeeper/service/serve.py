"""`ratekeeper serve`: the HTTP service, in one process or several."""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import socket
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.service import DEADLINE
from ratekeeper.service.listening import TcpPort, is_loopback
from ratekeeper.service.supervisor import listens, supervise
from ratekeeper.service.worker import Worker
from ratekeeper.subcommands import add_command, reader, seconds, whole_number

if TYPE_CHECKING:
    from ratekeeper.subcommands import Subcommands

FAILED = 2
MAX_WORKERS = 256
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
    description = f"{summary[0].upper()}{summary[1:]}."
    parser = add_command(commands, "serve", summary, description=description, epilog=_EPILOG, settings=None)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=reader(whole_number(1, 65_535)), default=8080, help="port to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        help="URL of the store, such as redis://localhost:6379/0 or sqlite:///path/to/limits.db "
        "(default: in memory; with several workers, in a temporary file)",
    )
    parser.add_argument(
        "--workers",
        type=reader(whole_number(1, MAX_WORKERS)),
        default=1,
        metavar="N",
        help="processes that serve together (default: %(default)s)",
    )
    parser.add_argument(
        "--deadline",
        type=reader(seconds),
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


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, and return the exit status."""
    try:
        token = read_token(options.token_file)
        if token is None and not is_loopback(options.host):
            return _fail(f"--host {options.host} is open to other machines; use --token-file or set RATEKEEPER_TOKEN")
        if options.workers > 1 and options.store == "memory://":
            return _fail(
                "memory:// counts in one process; leave --store out, so that the workers count in a temporary file, "
                "or choose another store"
            )
        port = TcpPort(options.host, options.port, is_shared=options.workers > 1)
        with closing(port):
            return _serve(options, token, port)
    except ImportError as error:
        return _fail(f"{error.name} is missing: pip install 'ratekeeper[server]'")
    except (InvalidRule, StoreUnavailable, ValueError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"cannot read {options.token_file}: {error.strerror}")


def _serve(options: argparse.Namespace, token: str | None, port: TcpPort) -> int:
    from ratekeeper.service import running
    from ratekeeper.service.app import App, create_app

    def make(worker: Worker) -> App:
        return create_app(
            options.store or _default_store(worker),
            token=token,
            hosts=options.allow_host,
            deadline=options.deadline,
            policies=options.policies,
            worker=worker,
        )

    def announce() -> None:
        print(f"Listening on {port.words} (press Ctrl-C to stop)", flush=True)

    def work(worker: Worker, supervisor: int) -> int:
        serving = running.Serving(make(worker), _listener(port), supervisor)
        try:
            return running.run(serving.until_stopped(partial(listens, supervisor)))
        finally:
            if serving.is_left_alone and worker.directory is not None:
                shutil.rmtree(worker.directory, ignore_errors=True)

    app = make(Worker())  # whatever is wrong with the options shows here, once
    _raise_file_limit(running.MAX_CONNECTIONS)
    gc.collect()
    gc.freeze()  # these objects stay alive, so the collector need not visit them again
    if options.workers > 1:
        return supervise(options.workers, work, announce)
    return running.run(running.Serving(app, _listener(port)).until_stopped(announce))


def _listener(port: TcpPort) -> socket.socket:
    """Return a socket that listens, and close what this process holds of the port besides."""
    with closing(port):
        return port.listen()


def _default_store(worker: Worker) -> str:
    return "memory://" if worker.directory is None else f"sqlite://{worker.directory}/limits.db"


def _raise_file_limit(connections: int) -> None:
    """Allow enough open files for all connections; many systems start processes with a limit of 1024."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        enough = 2 * connections
        if soft != resource.RLIM_INFINITY and soft < enough:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(enough, hard) if hard >= 0 else enough, hard))


def read_token(path: Path | None) -> str | None:
    """Return the token from a file or the environment, if there is one."""
    given = os.environ.get("RATEKEEPER_TOKEN") if path is None else path.read_text("utf-8")
    if given is None:
        return None
    token = given.strip()
    if not token:
        raise ValueError("the token is empty")
    return token


def _fail(message: str) -> int:
    for line in message.splitlines():
        print(f"ratekeeper serve: {' '.join(line.split())}", file=sys.stderr)
    return FAILED

"""`ratekeeper serve`: the HTTP service, in one process or several."""

from __future__ import annotations

import argparse
import gc
import shutil
import socket
import sys
from contextlib import closing, suppress
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidRule, StoreUnavailable
from ratekeeper.service.listening import ListenAddress, TcpPort, UnixSocket, is_loopback
from ratekeeper.service.log_lines import logging_as
from ratekeeper.service.serve_options import EPILOG, SUMMARY, add_options
from ratekeeper.service.worker import Worker
from ratekeeper.subcommands import add_command, read_token

if TYPE_CHECKING:
    from ratekeeper.service.certificates import Certificate
    from ratekeeper.subcommands import Subcommands

FAILED = 2
Tokens = tuple[str | None, str | None]
"""The operators' token, and the callers'."""


def add(commands: Subcommands) -> None:
    """Add the command to the command line."""
    description = f"{SUMMARY[0].upper()}{SUMMARY[1:]}."
    parser = add_command(commands, "serve", SUMMARY, description=description, epilog=EPILOG, settings=None)
    add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, and return the exit status."""
    with logging_as(options.log_format, access_log=options.access_log):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        tokens = _tokens(options)
        if options.workers > 1 and options.store == "memory://":
            raise ValueError(
                "memory:// counts in one process; leave --store out, so that the workers count in a temporary file, "
                "or choose another store"
            )
        certificate = _certificate(options)
        address = _address(options)
        try:
            return _serve(options, tokens, certificate, address)
        finally:
            address.remove()
    except ImportError as error:
        return _fail(f"{error.name} is missing: pip install 'ratekeeper[server]'")
    except (InvalidRule, StoreUnavailable, ValueError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(f"{error.filename or 'the system'}: {error.strerror}")


def _serve(options: argparse.Namespace, tokens: Tokens, certificate: Certificate | None, address: ListenAddress) -> int:
    from ratekeeper.service import running
    from ratekeeper.service.app import App, create_app
    from ratekeeper.service.supervisor import listens, supervise

    def make(worker: Worker) -> App:
        return create_app(
            options.store or _default_store(worker),
            token=tokens[0],
            caller_token=tokens[1],
            hosts=options.allow_host,
            deadline=options.deadline,
            policies=options.policies,
            on_error=options.on_error,
            local_share=options.local_share or Fraction(1, options.workers),
            lease=options.lease,
            worker=worker,
            metrics=not options.no_metrics,
            shows_keys=options.show_keys,
            access_log=options.access_log,
            denial_log=options.log_format == "json",
            **({"trusted_proxies": options.trusted_proxy} if options.trusted_proxy else {}),
        )

    def announce() -> None:
        scheme = "http" if certificate is None else "https"
        print(f"Listening on {address.words(scheme)} (press Ctrl-C to stop)", flush=True)

    def work(worker: Worker, supervisor: int) -> int:
        serving = running.Serving(make(worker), _listener(address), certificate, supervisor)
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
    return running.run(running.Serving(app, _listener(address), certificate).until_stopped(announce))


def _certificate(options: argparse.Namespace) -> Certificate | None:
    if options.tls_cert is None and options.tls_key is None:
        return None
    from ratekeeper.service.certificates import Certificate

    if options.tls_cert is None or options.tls_key is None:
        raise ValueError("--tls-cert and --tls-key belong together; give both")
    certificate = Certificate(options.tls_cert.absolute(), options.tls_key.absolute())
    certificate.check()
    return certificate


def _address(options: argparse.Namespace) -> ListenAddress:
    if options.unix_socket is not None:
        return UnixSocket(options.unix_socket, options.unix_socket_mode)
    return TcpPort(options.host, options.port, is_shared=options.workers > 1)


def _listener(address: ListenAddress) -> socket.socket:
    """Return a socket that listens, and close what this process holds of the address besides."""
    with closing(address):
        return address.listen()


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


def _tokens(options: argparse.Namespace) -> Tokens:
    token = read_token(options.token_file)
    caller_token = read_token(options.caller_token_file, "RATEKEEPER_CALLER_TOKEN")
    if options.unix_socket is None and token is None and not is_loopback(options.host):
        raise ValueError(f"--host {options.host} is open to other machines; use --token-file or set RATEKEEPER_TOKEN")
    if caller_token is not None and caller_token == token:
        raise ValueError("the callers' token is the operators' token as well; give callers another one")
    return token, caller_token


def _fail(message: str) -> int:
    for line in message.splitlines():
        print(f"ratekeeper serve: {' '.join(line.split())}", file=sys.stderr)
    return FAILED

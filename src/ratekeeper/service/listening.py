"""What the service listens on: an address and a port, or a Unix socket."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

BACKLOG = 1024  # connections that wait to be accepted
_SO_ATTACH_FILTER = 26  # of Linux, which Python does not name
_WAITING = struct.Struct("=24xI")  # of struct tcp_info: tcpi_unacked, which is the queue of a socket that listens
_DROP_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0)  # a packet filter in classic BPF: return 0


class ListenAddress(Protocol):
    """Where clients find the service."""

    def words(self, scheme: str) -> str:
        """Say where it is."""

    def listen(self) -> socket.socket:
        """Return a socket that listens, one for each worker; the caller closes it."""

    def close(self) -> None:
        """Close what this process holds of the place; sockets that listen are not closed."""

    def remove(self) -> None:
        """Close it, and leave nothing behind."""


class TcpPort:
    """A port of an address, which belongs to this service from the moment that it is made.

    Several workers listen on it with a socket each, among which the kernel divides the connections.
    """

    def __init__(self, host: str, port: int, *, is_shared: bool) -> None:
        """Take the port, unless another service has it; the error says so."""
        self.port = port
        self._is_shared = is_shared
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._family, self._address = found[0], found[4]
            taken = self._bind(is_shared=False)  # which fails if another service has the port, shared or not
            if is_shared:
                taken.close()
                taken = self._bind(is_shared=True)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ValueError(f"port {port} is already in use; choose another with --port") from None
            raise ValueError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
        self._taken = taken

    def words(self, scheme: str) -> str:
        address = str(self._address[0])
        if ipaddress.ip_address(address).is_unspecified:
            return f"{scheme}://localhost:{self.port}/ and on all addresses of this machine"
        return f"{scheme}://{f'[{address}]' if ':' in address else address}:{self.port}/"

    def listen(self) -> socket.socket:
        listener = self._bind(is_shared=True) if self._is_shared else self._taken.dup()
        listener.listen(BACKLOG)
        return listener

    def close(self) -> None:
        self._taken.close()

    def remove(self) -> None:
        self._taken.close()

    def _bind(self, *, is_shared: bool) -> socket.socket:
        bound = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which connections inherit
            bound.bind(self._address)
        except OSError:
            bound.close()
            raise
        return bound


class UnixSocket:
    """A file by which programs on this machine reach the service, if the permissions let them; workers share it."""

    def __init__(self, path: Path, mode: int) -> None:
        """Make the file, unless something is there already that may still be in use."""
        self._path = path.absolute()
        self._bound = socket.socket(socket.AF_UNIX)
        try:
            self._remove_abandoned()
            before = os.umask(0o777)  # until the permissions are set, nobody may connect
            try:
                self._bound.bind(os.fspath(path))
            finally:
                os.umask(before)
            path.chmod(mode)
        except OSError as error:
            self._bound.close()
            raise ValueError(f"cannot listen on --unix-socket {path}: {error.strerror or error}") from None

    def words(self, scheme: str) -> str:
        return f"{scheme}+unix:{self._path}"

    def listen(self) -> socket.socket:
        listener = self._bound.dup()
        listener.listen(BACKLOG)
        return listener

    def close(self) -> None:
        self._bound.close()

    def remove(self) -> None:
        self._bound.close()
        with suppress(OSError):
            self._path.unlink()

    def _remove_abandoned(self) -> None:
        """Remove the file of a service that was killed."""
        if not self._path.exists():
            return
        if not stat.S_ISSOCK(self._path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "the file already exists and is not a socket")
        with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
            probe.connect(os.fspath(self._path))
            raise OSError(errno.EADDRINUSE, "another service is listening on it")
        self._path.unlink()


def nobody_waits(listener: socket.socket) -> bool:
    """Tell whether every connection to a port has been accepted; False if that cannot be told."""
    if sys.platform != "linux" or listener.family == socket.AF_UNIX:
        return False
    information = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WAITING.size)
    return bool(_WAITING.unpack(information)[0] == 0)


def unreachable() -> socket.socket:
    """Return a socket that listens, but that no connection reaches (on Linux: otherwise, that nobody knows)."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    admit_no_more(listener)
    return listener


def admit_no_more(listener: socket.socket) -> None:
    """Let no new connection reach a port, while those that wait to be accepted stay. Linux only.

    Closing the socket would reset these. New clients are refused when the socket is closed; they try again until then.
    """
    if sys.platform == "linux" and listener.family != socket.AF_UNIX:
        instructions = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
        with suppress(OSError):
            listener.setsockopt(
                socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(instructions))
            )


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

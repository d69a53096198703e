"""A server that answers every command in the same way, and remembers what it was sent."""

import re
import socket
import threading
from contextlib import suppress

_COMMAND = re.compile(rb"\*\d+\r\n\$\d+\r\n(\w+)\r\n")


class Answering:
    """Takes any number of connections; `commands` are the names of what came over them, in order."""

    def __init__(self, reply):
        self.commands = []
        self._reply = reply
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()

    def _accept(self):
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                thread = threading.Thread(target=self._answer, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _answer(self, connection):
        with connection, suppress(OSError):
            while asked := connection.recv(1 << 20):
                names = [name.decode() for name in _COMMAND.findall(asked)]
                self.commands += names
                connection.sendall(self._reply * len(names))


def welcomed(connection):
    """Answer what a new connection is used for first: the script, which is made known."""
    asked = b""
    while not asked.endswith(b"\xdd\x00\x00\x00\x02\xc2\x00\r\n"):
        asked += connection.recv(1 << 20)
    connection.sendall(b"*1\r\n:1\r\n")

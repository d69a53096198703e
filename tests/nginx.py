"""A real nginx, with the sample configuration in front of an application."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests import servers

SAMPLE = Path(__file__).parent.parent / "deploy" / "nginx" / "ratekeeper.conf"
_MAIN = """
{user}
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/ratekeeper.conf;
}}
"""


def program() -> str:
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert found is not None, "no nginx on the PATH: on Debian and Ubuntu, run tools/nginx.sh as root"
    return found


class Nginx:
    """nginx on a free port. Of the sample configuration, only the addresses are changed, and what `changes` says."""

    def __init__(self, directory: Path, ratekeeper: int, application: int, **changes: str) -> None:
        self.port = servers.free_port()
        sample = SAMPLE.read_text("utf-8")
        addresses = {
            "listen 80;": f"listen 127.0.0.1:{self.port};",
            "server 127.0.0.1:8080;": f"server 127.0.0.1:{ratekeeper};",
            "server 127.0.0.1:8000;": f"server 127.0.0.1:{application};",
        }
        for before, after in (addresses | changes).items():
            assert sample.count(before) == 1, before
            sample = sample.replace(before, after)
        (directory / "ratekeeper.conf").write_text(sample, "utf-8")
        user = "user root;" if os.geteuid() == 0 else ""  # who may enter the directory
        (directory / "nginx.conf").write_text(_MAIN.format(directory=directory, user=user), "utf-8")
        self._errors = directory / "error.log"
        command = [program(), "-e", str(self._errors), "-p", str(directory), "-c", str(directory / "nginx.conf")]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        give_up = time.monotonic() + servers.PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    self.stop()
                    raise AssertionError(f"nginx did not come up: {self._errors.read_text('utf-8')}") from None
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """End nginx with its worker."""
        self._process.terminate()
        try:
            self._process.wait(servers.PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

"""A file server in the trainer's process: what `direct` is fetched from.

Law: it hands out the files it was told to offer, to whoever knows the address, and nothing else. Threads of its own do
the work in the kernel (sendfile), so that the trainer computes on.

    offer(name, path) ─► http://HOST:PORT/TOKEN/NAME ─► GET with a range ─► 206 and the rest of the file
                                                         └─ other token, other name ─► 404

The address is a capability: who has it can read the weights. It is not encrypted; listen where that is not needed.
"""

from __future__ import annotations

import hmac
import http.server
import os
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STALL_TIMEOUT_S = 30.0  # a receiver that takes nothing for so long is dropped


class FileServer:
    """Server of files, which listens from the start. Raises `OSError` when the address is taken.

    Example: `server = FileServer("127.0.0.1", 0); url = server.offer("w1", Path("/dev/shm/w1")); ...; server.close()`
    """

    def __init__(self, host: str, port: int, *, advertised_host: str = "") -> None:
        """advertised_host: what the address names; empty: `host`, or this machine's name where that is all of them."""
        self._files: dict[str, Path] = {}
        self._token = secrets.token_urlsafe(24)
        self._server = _Server((host, port), self._file)
        everywhere = host in ("", "0.0.0.0")
        name = advertised_host or (socket.gethostname() if everywhere else host)
        self._address = f"http://{name}:{self._server.server_address[1]}/{self._token}"
        threading.Thread(target=self._server.serve_forever, name="publications", daemon=True).start()

    def offer(self, name: str, path: Path) -> str:
        """The address of the file from now on. It may be removed while it is being fetched."""
        self._files[name] = path
        return f"{self._address}/{name}"

    def withdraw(self, name: str) -> None:
        self._files.pop(name, None)

    @property
    def idle(self) -> bool:
        """Whether it offers nothing."""
        return not self._files

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _file(self, path: str) -> Path | None:
        token, _, name = path.removeprefix("/").partition("/")
        return self._files.get(name) if hmac.compare_digest(token.encode(), self._token.encode()) else None


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], find: Callable[[str], Path | None]) -> None:
        self.find = find
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A receiver that was killed resets its connection: no news, and not for standard error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _STALL_TIMEOUT_S

    def do_GET(self) -> None:
        try:
            self._answer()
        except OSError:  # the receiver went away; it comes back for the rest, or does not
            self.close_connection = True

    def _answer(self) -> None:
        assert isinstance(self.server, _Server)
        path = self.server.find(self.path)
        if path is None or not path.is_file():
            self.send_error(404)
            return
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            wanted = re.fullmatch(r"bytes=(\d{1,18})-", self.headers.get("Range", "bytes=0-"))
            if wanted is None or int(wanted[1]) > size:
                self.send_error(416)
                return
            start = int(wanted[1])
            self.send_response(206)
            self.send_header("Content-Length", str(size - start))
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
            self.end_headers()
            if start < size:
                self.connection.sendfile(file, offset=start)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: standard error holds the trainer's last words."""

"""An HTTP proxy before an S3 server that spoils chosen requests: how a bad day looks to a writer.

    with FaultyProxy(server_url) as proxy:
        proxy.spoil(5, "lost answer")        # the sixth request from now
        ...                                  # use proxy.url as endpoint
        assert proxy.n_requests > 5

Every fault is one that a store or a network was seen to make; what the server did meanwhile is what
the fault's name says. A request that a client repeats counts again and is not spoiled again, unless
`spoil` is told for how many.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>made by a test</Message></Error>"
FAULTS = (
    "500",
    "503",
    "reset",
    "timeout",
    "lost answer",
    "truncated",
    "409",
)
"""500 and 503 SlowDown: not applied. reset: the connection breaks before the server hears of it.
timeout: no answer and not applied. lost answer: applied, then the connection breaks. truncated:
half of the answer's body. 409: a conditional PUT met another one (other requests pass)."""


class FaultyProxy:
    """Forwards to an S3 server; a context manager."""

    def __init__(self, server: str, patience: float = 3.0) -> None:
        """Prepare to forward to `server`; a timeout lasts `patience` seconds."""
        self._target = urlsplit(server)
        self.patience = patience
        self._lock = threading.Lock()
        self.requests: list[tuple[str, str]] = []
        """Method and path of each request since the last `spoil`."""
        self._first, self._count, self._fault = 0, 0, ""
        self.n_spoiled = 0
        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._httpd.daemon_threads = True
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The endpoint to give to a client."""
        return f"http://127.0.0.1:{self._httpd.server_address[1]}"

    @property
    def n_requests(self) -> int:
        """Requests since the last `spoil`."""
        return len(self.requests)

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join()

    def spoil(self, first: int, fault: str, count: int = 1) -> None:
        """Count anew, and spoil `count` requests from number `first` (from 0) on."""
        assert fault in (*FAULTS, ""), fault
        with self._lock:
            self.requests, self.n_spoiled = [], 0
            self._first, self._count, self._fault = first, count, fault

    def _judge(self, method: str, path: str, is_conditional: bool) -> str:
        """Note a request and return the fault for it, or an empty string."""
        with self._lock:
            number = len(self.requests)
            self.requests.append((method, path))
            fault = self._fault if self._first <= number < self._first + self._count else ""
            if fault == "409" and not is_conditional:
                fault = ""
            self.n_spoiled += bool(fault)
            return fault

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[Any, bytes]:
        assert self._target.hostname
        connection = http.client.HTTPConnection(
            self._target.hostname, self._target.port, timeout=30
        )
        try:
            connection.request(handler.command, handler.path, body, dict(handler.headers.items()))
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()


def _handler(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            is_conditional = self.headers.get("If-None-Match") is not None
            fault = proxy._judge(self.command, self.path, is_conditional)
            if fault in ("500", "503", "409"):
                code = {"500": "InternalError", "503": "SlowDown"}.get(
                    fault, "ConditionalRequestConflict"
                )
                self._answer(int(fault), {}, _ERROR.format(code).encode())
            elif fault == "reset":
                self._break_off()
            elif fault == "timeout":
                threading.Event().wait(proxy.patience)
                self._break_off()
            else:
                answer, data = proxy._forward(self, body)
                if fault == "lost answer":
                    self._break_off()
                    return
                cut = len(data) // 2 if fault == "truncated" and data else len(data)
                self._answer(answer.status, answer.headers, data[:cut], len(data))
                if cut < len(data):
                    self._break_off()

        def _answer(self, status: int, headers: Any, data: bytes, said: int | None = None) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = len(data) if said is None else said
            if self.command == "HEAD":
                length = int(headers.get("Content-Length", 0))
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _break_off(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            linger = struct.pack("ii", 1, 0)  # a reset instead of an orderly end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()

        def finish(self) -> None:
            with contextlib.suppress(OSError, ValueError):  # broken off on purpose
                super().finish()

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                super().handle()

        def log_message(self, *_: Any) -> None:
            pass

    serve: Callable[[Any], None] = Handler._serve
    for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", serve)
    return Handler

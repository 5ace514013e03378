"""HTTP server that takes InfluxDB's line protocol, and answers as a test says."""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from ssl import SSLContext

    Answer = tuple[int, str]


class LineServer:
    """Server that answers with a status and an error, and keeps the lines of requests that it accepted."""

    def __init__(self, answer: Callable[[list[bytes]], Answer], tls: SSLContext | None) -> None:
        self.accepted: set[bytes] = set()
        self.requests: list[tuple[str, str | None]] = []
        """Path and authorization of each request."""
        self.connections: list[socket.socket] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet

            def setup(self) -> None:
                super().setup()
                server.connections.append(self.connection)

            def do_POST(self) -> None:
                lines = self.rfile.read(int(self.headers["Content-Length"])).split(b"\n")
                server.requests.append((self.path, self.headers["Authorization"]))
                status, error = answer(lines)
                if status < 300:
                    server.accepted.update(lines)
                body = json.dumps({"error": error}).encode() if error else b""
                self.send_response(status)
                if status != 204:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        if tls is not None:
            self.http.socket = tls.wrap_socket(self.http.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.http.server_port}"

    def close_connections(self) -> None:
        """Close all open connections of clients."""
        for connection in self.connections:
            connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def line_server(
    answer: Callable[[list[bytes]], Answer], *, tls: SSLContext | None = None
) -> Iterator[LineServer]:
    """Run a server, with TLS if there is a context."""
    server = LineServer(answer, tls)
    thread = Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()

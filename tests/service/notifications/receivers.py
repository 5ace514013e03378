"""Receivers of messages: an HTTP server and a mail server on free ports of the loopback interface."""

from __future__ import annotations

import asyncio
import email
import email.policy
import ssl
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from aiosmtpd.smtp import SMTP, AuthResult

from meshfleet.rest.channels import ChannelKind
from meshfleet.service.notifications.channels import ChannelTarget, StoredChannel
from meshfleet.settings.model import MailSettings, WebhookSettings

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable
    from email.message import EmailMessage
    from pathlib import Path

    import trustme
    from aiosmtpd.smtp import Envelope, LoginPassword, Session

LOOPBACK = WebhookSettings(allow=(ip_network("127.0.0.0/8"),), allow_http=True)
"""Settings with which webhooks may lead to a receiver without TLS."""


def build_channel(
    kind: ChannelKind = ChannelKind.WEBHOOK,
    *,
    secrets: tuple[str, ...] = (),
    name: str = "Ops",
    **target: Any,
) -> StoredChannel:
    """Build a channel that has not delivered anything yet. `target` are fields of `ChannelTarget`."""
    return StoredChannel(
        id=1,
        name=name,
        kind=kind,
        is_enabled=True,
        target=ChannelTarget(**target),
        secrets=secrets,
        created_at=0,
        problem=None,
        failing_since=None,
        failures=0,
        retry_at=None,
        delivered_at=None,
    )


# --- HTTP ---


class ReceivedRequest(NamedTuple):
    """Request that a receiver got."""

    method: str
    path: str
    headers: dict[str, str]
    """Headers by name in lower case."""
    body: bytes


class Answer(NamedTuple):
    """Response of a receiver."""

    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0
    """Seconds after which it is sent; earlier if the receiver is closed."""


class WebhookReceiver:
    """HTTP server that records requests, and answers as a test says; with TLS if it gets an authority.

    It runs in threads of its own while its `with` block lasts.
    """

    def __init__(self, authority: trustme.CA | None = None, *, host: str = "127.0.0.1") -> None:
        """Create a receiver. With `authority` it has a certificate for `host`."""
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.answer: Callable[[ReceivedRequest], Answer] = lambda _: Answer()
        self.is_closing = Event()
        self.lock = Lock()
        self._http = _HttpServer(self, _create_server_context(authority, host))
        scheme = "http" if authority is None else "https"
        self.url = f"{scheme}://{host}:{self._http.server_port}/hook"
        self._thread = Thread(target=self._http.serve_forever, args=(0.01,))

    @property
    def port(self) -> int:
        """Port on which it listens."""
        return self._http.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closing.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, receiver: WebhookReceiver, context: ssl.SSLContext | None) -> None:
        self.receiver = receiver
        self._context = context
        super().__init__(("127.0.0.1", 0), _HttpHandler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.receiver.connections += 1
        if self._context is not None:
            # The handshake is done by the thread of the connection.
            connection = self._context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore that a client has closed the connection, for example because it refuses the certificate."""


class _HttpHandler(BaseHTTPRequestHandler):
    wbufsize = -1  # head and body in one packet

    def _answer(self) -> None:
        assert isinstance(self.server, _HttpServer)
        receiver = self.server.receiver
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = ReceivedRequest(self.command, self.path, headers, body)
        with receiver.lock:
            receiver.requests.append(request)
            answer = receiver.answer(request)
        receiver.is_closing.wait(answer.delay)
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET = _answer  # noqa: N815 # named by http.server

    def log_message(self, *_: object) -> None: ...


def _create_server_context(authority: trustme.CA | None, host: str) -> ssl.SSLContext | None:
    if authority is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    return context


# --- E-mail ---


class ReceivedMail(NamedTuple):
    """E-mail that a mail server accepted."""

    sender: str
    recipients: list[str]
    content: bytes
    message: EmailMessage

    def get_text(self, subtype: str) -> str:
        """Return the plain or HTML text."""
        part = self.message.get_body((subtype,))
        assert part is not None
        return str(part.get_content())


class MailReceiver:
    """Mail server that records e-mails. Its attributes say how it answers; see `run_mail_receiver`."""

    def __init__(self) -> None:
        self.mails: list[ReceivedMail] = []
        self.refused: dict[str, str] = {}
        """Replies to recipients that it refuses."""
        self.sender_reply = "250 OK"
        self.data_reply = "250 OK"
        self.is_silent = False
        """Whether it does not answer when it has received an e-mail."""
        self.logins: list[tuple[str, str]] = []
        self.login = ("", "")
        """User and password that it accepts."""
        self.was_encrypted: list[bool] = []
        """Whether the connection of each e-mail had TLS."""
        self.port = 0

    def build_settings(self, **settings: Any) -> MailSettings:
        """Return the settings of a client of this server."""
        defaults = {"host": "127.0.0.1", "port": self.port, "sender": "meshfleet@example.org", "tls": "off"}
        return MailSettings(**{**defaults, **settings})

    # aiosmtpd calls the following methods.

    async def handle_MAIL(  # noqa: N802 # named by aiosmtpd
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return self.sender_reply

    async def handle_RCPT(  # noqa: N802 # named by aiosmtpd
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 # named by aiosmtpd
        self, server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        content = envelope.content
        assert isinstance(content, bytes)
        message = email.message_from_bytes(content, policy=email.policy.default)
        self.mails.append(ReceivedMail(envelope.mail_from or "", envelope.rcpt_tos, content, message))
        transport = server.transport
        self.was_encrypted.append(
            transport is not None and transport.get_extra_info("sslcontext") is not None
        )
        if self.is_silent:
            await asyncio.Event().wait()
        return self.data_reply

    def authenticate(
        self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, data: LoginPassword
    ) -> AuthResult:
        """Check a login."""
        login = (data.login.decode(), data.password.decode())
        self.logins.append(login)
        return AuthResult(success=login == self.login, handled=False)


@asynccontextmanager
async def run_mail_receiver(
    authority: trustme.CA | None = None, *, host: str = "127.0.0.1", implicit: bool = False, **options: Any
) -> AsyncIterator[MailReceiver]:
    """Run a mail server on this loop while a block lasts.

    With `authority` it has a certificate for `host`, and offers STARTTLS; with `implicit` it begins with TLS.
    `options` are those of `aiosmtpd.smtp.SMTP`, such as `auth_required`.
    """
    receiver = MailReceiver()
    context = _create_server_context(authority, host)
    loop = asyncio.get_running_loop()

    def create_protocol() -> SMTP:
        return SMTP(
            receiver,
            hostname="mail.example.org",
            tls_context=None if implicit else context,
            auth_require_tls=not implicit,
            authenticator=receiver.authenticate,
            loop=loop,
            **options,
        )

    server = await loop.create_server(create_protocol, "127.0.0.1", 0, ssl=context if implicit else None)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await server.wait_closed()


def write_authority(authority: trustme.CA, directory: Path) -> Path:
    """Write the certificate of an authority to a file."""
    path = directory / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path

"""Delivery of messages by e-mail, through the mail server of the operator."""

from __future__ import annotations

import asyncio
import logging
import re
import smtplib
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from typing import TYPE_CHECKING, Final

from meshfleet.errors.mqtt import UnusableCertificate
from meshfleet.service.notifications.delivery import DeliveryResult, Outcome
from meshfleet.service.notifications.message_text import build_message_text, to_one_line
from meshfleet.tls import create_tls_context, system_tls_context

if TYPE_CHECKING:
    from meshfleet.service.notifications.channels import StoredChannel
    from meshfleet.service.notifications.delivery import OutgoingMessage
    from meshfleet.settings.model import MailSettings

_log = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 15.0
"""Maximum number of seconds of an attempt: resolution, connection, login and sending together."""
_THREADS: Final = 4

_RECIPIENT = re.compile(r"[^@\s<>(),:;\"\\\[\]]{1,64}@[^@\s<>(),:;\"\\\[\]]{1,253}")
_PERMANENT: Final = 500
"""First code of SMTP that means that the same message is refused again."""
_TOO_LARGE: Final = 552


class MailDeliverer:
    """Deliverer of channels of the kind `email`."""

    def __init__(
        self,
        settings: MailSettings,
        *,
        public_url: str,
        installation: str,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        """Create a deliverer. Links begin with `public_url`; `installation` is its id."""
        self._settings = settings
        self._public_url = public_url
        self._installation = installation
        self._timeout = timeout
        # Threads of its own: a mail server that hangs must not occupy those that others need.
        self._threads = ThreadPoolExecutor(_THREADS, "notifications.mail")

    def close(self) -> None:
        """End the threads, without waiting for attempts that were canceled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def deliver(self, channel: StoredChannel, message: OutgoingMessage) -> DeliveryResult:
        """Try once to deliver a message."""
        if self._settings.host is None:
            return _failed("no mail server is set: set mail.host")
        if self._settings.sender is None:
            return _failed("no sender is set: set mail.from")
        recipients = [each for each in channel.target.recipients if _is_recipient(each)]
        if not recipients:
            return _refused("the channel has no valid recipient: correct its addresses")
        try:
            mail = self._build_mail(channel, message, self._settings.sender, recipients)
            return await self._send(mail, recipients)
        except TimeoutError:
            return _failed(
                f"the mail server did not answer within {self._timeout:g} s: check mail.host, mail.port and"
                " the firewall"
            )
        except Exception as exc:  # noqa: BLE001 # a defect must not stop other channels
            _log.error("e-mail was not sent: internal error", exc_info=True)
            return _failed(f"internal error ({type(exc).__name__}): see the log")

    async def _send(self, mail: EmailMessage, recipients: list[str]) -> DeliveryResult:
        """Send an e-mail in a thread. Raise `TimeoutError` if that takes too long."""
        session = _MailSession(self._settings, self._timeout)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                return await loop.run_in_executor(self._threads, session.send, mail, recipients)
        finally:
            session.abort()  # ends the thread, if it still runs

    def _build_mail(
        self, channel: StoredChannel, message: OutgoingMessage, sender: str, recipients: list[str]
    ) -> EmailMessage:
        """Build the e-mail of a message. Its `Message-ID` is the same in each attempt."""
        text = build_message_text(message.body, public_url=self._public_url, channel_name=channel.name)
        mail = EmailMessage(SMTP_POLICY)
        mail["Subject"] = to_one_line(text.subject)
        mail["From"] = sender
        mail["To"] = ", ".join(recipients)
        mail["Date"] = datetime.fromtimestamp(message.now // 1000, UTC)
        mail["Message-ID"] = self._build_id(message.id, sender)
        if message.thread is not None:
            # No message has this id: mail programs show those that refer to the same one together.
            thread = self._build_id(message.thread, sender)
            mail["In-Reply-To"] = thread
            mail["References"] = thread
        mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: keeps others from answering
        mail.set_content(text.plain, cte="quoted-printable")
        mail.add_alternative(text.html, subtype="html", cte="quoted-printable")
        return mail

    def _build_id(self, name: str, sender: str) -> str:
        domain = sender.rpartition("@")[2].encode("idna").decode()
        return f"<{name}.{self._installation}@{domain}>"


class _MailSession:
    """One connection to the mail server. `send` blocks its thread; `abort` may be called from another."""

    def __init__(self, settings: MailSettings, timeout: float) -> None:
        self._settings = settings
        self._timeout = timeout
        self._smtp: smtplib.SMTP | None = None
        self._is_aborted = False

    def send(self, mail: EmailMessage, recipients: list[str]) -> DeliveryResult:
        """Send an e-mail, and return how it went."""
        try:
            self._smtp = smtp = self._connect()
            self._log_in(smtp)
            refused = smtp.send_message(mail, self._settings.sender, recipients)
        except smtplib.SMTPException as exc:
            return _describe_smtp_error(exc)
        except UnusableCertificate as exc:
            return _failed(f"certificate authorities cannot be used ({exc.reason}): check mail.ca")
        except (OSError, ValueError) as exc:
            return _failed(_describe_connection_error(exc))
        finally:
            self._close()
        return _describe_success(refused, len(recipients))

    def abort(self) -> None:
        """Close the connection, so that a thread that waits for the server ends. Closed ones are ignored."""
        self._is_aborted = True
        connection = None if self._smtp is None else self._smtp.sock
        if connection is not None:
            with suppress(OSError):  # closed meanwhile
                # The method of the TLS socket would change objects that the other thread uses.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _connect(self) -> smtplib.SMTP:
        """Connect to the server, with TLS unless it is off."""
        settings = self._settings
        context = None if settings.tls == "off" else self._load_context()
        host, port = settings.host or "", settings.server_port
        name = _get_local_name()  # else smtplib asks DNS for it, which may take long
        smtp = (
            smtplib.SMTP_SSL(host, port, name, timeout=self._timeout, context=context)
            if settings.tls == "tls"
            else smtplib.SMTP(host, port, name, timeout=self._timeout)
        )
        self._smtp = smtp
        if self._is_aborted:
            raise TimeoutError
        if settings.tls == "starttls":
            # Raises an error if the server does not offer TLS: it may be removed by others on the way.
            smtp.starttls(context=context)
        return smtp

    def _log_in(self, smtp: smtplib.SMTP) -> None:
        if self._settings.user:
            smtp.login(self._settings.user, self._settings.password)

    def _load_context(self) -> ssl.SSLContext:
        if self._settings.ca is None:
            return system_tls_context()
        return create_tls_context(authorities=self._settings.ca)

    def _close(self) -> None:
        """Leave the server. The message is delivered or not: errors from now on do not matter."""
        if (smtp := self._smtp) is not None:
            with suppress(smtplib.SMTPException, OSError, ValueError):
                smtp.quit()
            smtp.close()


def _is_recipient(address: str) -> bool:
    return address.isprintable() and _RECIPIENT.fullmatch(address) is not None


def _get_local_name() -> str:
    name = socket.gethostname()
    return name if re.fullmatch("[A-Za-z0-9.-]+", name) and "." in name else "[127.0.0.1]"


def _failed(problem: str, status: int | None = None) -> DeliveryResult:
    return DeliveryResult(Outcome.CHANNEL_FAILED, status, problem)


def _refused(problem: str, status: int | None = None) -> DeliveryResult:
    return DeliveryResult(Outcome.MESSAGE_REFUSED, status, problem)


def _describe_success(refused: dict[str, tuple[int, bytes]], count: int) -> DeliveryResult:
    """Return the result of a message that the server has accepted for some recipients."""
    if not refused:
        return DeliveryResult(Outcome.DELIVERED, 250)
    code = max(code for code, _ in refused.values())
    return DeliveryResult(
        Outcome.DELIVERED,
        250,
        f"the mail server refused {len(refused)} of {count} recipients: check the addresses of the channel"
        f" (SMTP {code})",
    )


def _describe_smtp_error(error: smtplib.SMTPException) -> DeliveryResult:
    """Return the result of a reply of the mail server that is an error. The text of the reply is not used."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return _describe_refused_recipients(error)
    if isinstance(error, smtplib.SMTPResponseException):
        return _describe_reply(error, error.smtp_code)
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return _failed(
            "the mail server does not support STARTTLS, logins, or the characters of an address: check"
            " mail.port, mail.tls and mail.user"
        )
    return _failed("the mail server closed the connection: check mail.port and mail.tls, and see its log")


def _describe_reply(error: smtplib.SMTPResponseException, code: int) -> DeliveryResult:
    if isinstance(error, smtplib.SMTPAuthenticationError):
        text = "refuses the login: check mail.user and mail.password"
    elif code == _TOO_LARGE or (isinstance(error, smtplib.SMTPDataError) and code >= _PERMANENT):
        return _refused(f"the mail server does not accept the message: see its log (SMTP {code})", code)
    elif isinstance(error, smtplib.SMTPSenderRefused):
        text = "refuses the sender: check mail.from and mail.user"
    else:
        text = "has an error: see its log"
    return _failed(f"the mail server {text} (SMTP {code})", code)


def _describe_refused_recipients(error: smtplib.SMTPRecipientsRefused) -> DeliveryResult:
    codes = [code for code, _ in error.recipients.values()]
    code = min(codes)
    if code < _PERMANENT:
        text = "does not accept messages for the recipients now: it is tried again"
        return _failed(f"the mail server {text} (SMTP {code})", code)
    return _refused(
        f"the mail server refuses all recipients: check the addresses of the channel (SMTP {code})", code
    )


def _describe_connection_error(error: Exception) -> str:
    """Return why the connection failed, and what to do."""
    match error:
        case ssl.SSLCertVerificationError():
            return (
                f"the certificate of the mail server is not trusted ({to_one_line(error.verify_message)}):"
                " renew it, correct mail.host, or set mail.ca"
            )
        case ssl.SSLError():
            return (
                "the TLS handshake with the mail server failed: check mail.port, and mail.tls (starttls is"
                " usual at port 587, tls at 465)"
            )
        case socket.gaierror():
            return "the name of the mail server cannot be resolved: check mail.host, and the DNS server"
        case ConnectionRefusedError():
            return "the mail server refuses connections: check that it runs, mail.host and mail.port"
        case TimeoutError():
            return "the mail server did not answer in time: check mail.host, mail.port and the firewall"
    return "the connection to the mail server failed: check the network, mail.host and mail.port"

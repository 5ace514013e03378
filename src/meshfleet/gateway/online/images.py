"""How a gateway gets a firmware image: it asks where the image is, and fetches it there (firmware-21)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress
from ssl import SSLContext
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from msgspec import UNSET, Struct

from meshfleet.errors import ImageBroken, ImageUnavailable, LinkError, MalformedImage, WireError
from meshfleet.gateway.online.diagnostics import Diagnostics
from meshfleet.gateway.online.download import download
from meshfleet.link import Options
from meshfleet.wire.diagnostics import decode_answer, encode_question, question_topic
from meshfleet.wire.package import MAX_SIZE, read_image

if TYPE_CHECKING:
    from asyncio import Future

    from httpx import AsyncClient

    from meshfleet.link import Address, Link
    from meshfleet.wire.diagnostics import FirmwareAnswer, FirmwareQuestion
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.package import Image

_log = logging.getLogger(__name__)

_TRIES: Final = 3


class Terms(Struct, frozen=True, kw_only=True):
    """How images are got; many gateways may share these."""

    patience: float = 10.0
    """Seconds without a word, from the service or from the server of an image."""
    within: float = 300.0
    """Seconds that fetching an image may take."""
    largest: int = MAX_SIZE
    """Bytes of an image."""
    tls: SSLContext | None = None
    """Whom to trust on the diagnostics connection; without it the authorities that the system trusts."""


_DEFAULTS: Final = Terms()


class Images:
    """Gets firmware images for one gateway.

    `link` is the gateway's own, and needed for a MAC without letters alone: see `diagnostics`. Its owner
    then passes what arrives there on the topic of answers to `answer_came`.
    """

    def __init__(
        self,
        address: Address,
        gateway: Mac,
        *,
        link: Link | None,
        http: AsyncClient,
        terms: Terms = _DEFAULTS,
    ) -> None:
        self._gateway = gateway
        self._http = http
        self._terms = terms
        self._open: dict[str, Future[FirmwareAnswer | None]] = {}
        options = Options(patience=terms.patience, tls=terms.tls)
        self._diagnostics = Diagnostics(
            address, gateway, shared=link, answered=self.answer_came, options=options
        )

    async def get(self, question: FirmwareQuestion) -> Image:
        """Ask for an image, fetch it, and check it.

        Raises ImageUnavailable when it cannot be had now, and ImageBroken when it is not what was promised.
        Cancelling leaves nothing behind.
        """
        answer = await self._ask(question)
        if answer is None:
            raise ImageUnavailable(f"there is no image {_name(question)}")
        terms = self._terms
        data = await download(
            self._http, answer.uri, limit=terms.largest, silence=terms.patience, within=terms.within
        )
        _compare(data, answer)
        try:
            return read_image(data)
        except MalformedImage as problem:
            raise ImageBroken(f"the image {_name(question)} cannot be read: {problem}") from problem

    def answer_came(self, payload: bytes) -> None:
        """Take an answer. Late, foreign and malformed ones are nobody's."""
        try:
            question_id, answer = decode_answer(payload)
        except WireError as problem:
            _log.debug("%s ignores a malformed answer: %s", self._gateway, problem)
            return
        waiting = self._open.get(question_id)
        if waiting is None or waiting.done():
            _log.debug("%s ignores an answer that it does not wait for", self._gateway)
        else:
            waiting.set_result(answer)

    async def _ask(self, question: FirmwareQuestion) -> FirmwareAnswer | None:
        """Where the image is; None: there is none."""
        question_id = str(uuid4())  # firmware-15
        answer: Future[FirmwareAnswer | None] = asyncio.get_running_loop().create_future()
        self._open[question_id] = answer
        try:
            async with self._diagnostics.line() as line:
                told = await self._insist(line, encode_question(question_id, question), answer)
                if not told:
                    reason = self._diagnostics.trouble or "nobody answers"
                    raise ImageUnavailable(f"cannot ask for the image {_name(question)}: {reason}")
        except LinkError as problem:
            raise ImageUnavailable(f"cannot ask for the image {_name(question)}: {problem}") from problem
        finally:
            del self._open[question_id]
        return answer.result()

    async def _insist(
        self, line: Future[Link], question: bytes, answer: Future[FirmwareAnswer | None]
    ) -> bool:
        """Ask up to three times, always under the same id: an answer to any of them will do."""
        for _ in range(_TRIES):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._terms.patience):
                    link = await asyncio.shield(line)
                    await link.publish(question_topic(self._gateway), question)
                    await asyncio.shield(answer)
            if answer.done():
                return True
        return False


def _name(question: FirmwareQuestion) -> str:
    return f"of model {question.model_number} in version {question.version}"


def _compare(data: bytes, answer: FirmwareAnswer) -> None:
    """Hold it against what the answer promised."""
    if answer.size is not UNSET and answer.size != len(data):
        raise ImageBroken(f"the image has {len(data)} bytes; {answer.size} were promised")
    if answer.sha256 is not UNSET and answer.sha256 != hashlib.sha256(data).hexdigest():
        raise ImageBroken("the image does not have the SHA-256 that was promised")

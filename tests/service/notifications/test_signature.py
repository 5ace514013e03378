"""Signatures of webhooks, judged by the library of Standard Webhooks and checked by the SDK."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from meshfleet.client import verify_webhook
from meshfleet.errors import FleetError, InvalidWebhook
from meshfleet.service.notifications.signature import build_headers, create_secret
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

BODY = '{"type":"alarm.opened","name":"Büro"}'.encode()
SECRET, OTHER = create_secret(), create_secret()


def sign(*secrets: str, age: float = 0, body: bytes = BODY) -> dict[str, str]:
    return build_headers("msg_1", body, secrets, timestamp=int(time.time() - age))


def is_valid(headers: dict[str, str], secret: str, body: bytes = BODY) -> bool:
    """Let both the judge and the SDK check a signature. They must agree."""
    verdicts = []
    checks: list[Callable[[], object]] = [
        lambda: Webhook(secret).verify(body, headers, json_parse=False),
        lambda: verify_webhook(body, headers, secret),
    ]
    for check in checks:
        try:
            check()
        except (WebhookVerificationError, InvalidWebhook):
            verdicts.append(False)
        else:
            verdicts.append(True)
    assert verdicts[0] is verdicts[1], verdicts
    return verdicts[0]


def test_a_secret_is_32_random_bytes() -> None:
    assert SECRET != OTHER
    assert len(base64.b64decode(SECRET.removeprefix("whsec_"))) == 32


def test_a_signed_body_is_valid() -> None:
    assert is_valid(sign(SECRET), SECRET)
    assert is_valid(sign(SECRET, age=290), SECRET)


def test_a_changed_byte_is_found() -> None:
    for position in range(len(BODY)):
        if BODY[position] < 128:  # the judge reads UTF-8 only
            changed = BODY[:position] + bytes([BODY[position] ^ 1]) + BODY[position + 1 :]
            assert not is_valid(sign(SECRET), SECRET, changed)


@each_row(
    "headers",
    [
        sign(SECRET, age=86_400),
        sign(SECRET, age=-86_400),  # rows are made at the start, up to an hour before they are used
        sign(OTHER),
        sign(),
        {**sign(SECRET), "webhook-id": "msg_2"},
        {**sign(SECRET), "webhook-id": ""},
        {**sign(SECRET), "webhook-timestamp": "x"},
        {**sign(SECRET), "webhook-timestamp": "-1"},
        {**sign(SECRET), "webhook-timestamp": "9" * 400},
        {**sign(SECRET), "webhook-signature": "v2," + sign(SECRET)["webhook-signature"][3:]},
        {},
    ],
)
def test_other_and_old_requests_are_refused(headers: dict[str, str]) -> None:
    assert not is_valid(headers, SECRET)


def test_both_secrets_are_valid_while_one_is_replaced() -> None:
    headers = sign(SECRET, OTHER)
    assert is_valid(headers, SECRET)
    assert is_valid(headers, OTHER)
    assert not is_valid(headers, create_secret())


def test_a_receiver_may_know_several_secrets() -> None:
    verify_webhook(BODY, sign(SECRET), [OTHER, SECRET])
    with pytest.raises(InvalidWebhook, match="does not match"):
        verify_webhook(BODY, sign(SECRET), [OTHER])


def test_names_of_headers_may_have_upper_case() -> None:
    verify_webhook(BODY, {name.title(): value for name, value in sign(SECRET).items()}, SECRET)


def test_the_tolerance_can_be_changed() -> None:
    verify_webhook(BODY, sign(SECRET, age=4000), SECRET, tolerance_seconds=5000)
    with pytest.raises(InvalidWebhook, match="s old"):
        verify_webhook(BODY, sign(SECRET, age=60), SECRET, tolerance_seconds=30)


@each_row(
    ("headers", "secret", "reason"),
    [
        ({}, SECRET, "no header webhook-id"),
        ({"webhook-id": "1", "webhook-timestamp": "1"}, SECRET, "no header webhook-signature"),
        (sign(SECRET), "hunter2", "the secret is not whsec_"),
        (sign(SECRET), "whsec_", "the secret is not whsec_"),
        (sign(SECRET), "whsec_é", "the secret is not whsec_"),
        ({**sign(SECRET), "webhook-signature": "é,\ud800"}, SECRET, "does not match"),
        ({**sign(SECRET), "webhook-id": "\ud800"}, SECRET, "does not match"),
    ],
)
def test_the_reason_of_a_refusal_is_told(headers: dict[str, str], secret: str, reason: str) -> None:
    with pytest.raises(FleetError, match=reason) as raised:
        verify_webhook(BODY, headers, secret)
    assert "hunter2" not in str(raised.value)

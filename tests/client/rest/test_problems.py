"""Errors of the service, raised by the client as the same classes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from litestar import Request

from meshfleet import errors
from meshfleet.client.rest.http_messages import HttpResponse
from meshfleet.client.rest.problems import decode_error
from meshfleet.errors import (
    BodyTooLarge,
    Fault,
    FleetError,
    InvalidRequest,
    NotFound,
    Refused,
    ServiceRefused,
    TooManyAttempts,
    TooManySubscribers,
    Unanswered,
    Unavailable,
    WrongCredentials,
)
from meshfleet.errors.protocol import GatewayTooOld, MalformedInput
from meshfleet.errors.startup import WrongSettings
from meshfleet.protocol.ids import Version
from meshfleet.service.http.problems import build_problem_response
from tests.row_tables import each_row

BASE_URL = "https://fleet.example.org"


def _list_subclasses(error: type[FleetError]) -> list[type[FleetError]]:
    return [error, *(subclass for child in error.__subclasses__() for subclass in _list_subclasses(child))]


def _list_errors(*families: type[FleetError]) -> list[type[FleetError]]:
    return [
        each
        for family in families
        for each in _list_subclasses(family)
        if each.__module__.startswith("meshfleet.errors")
    ]


def _create_error(kind: type[FleetError]) -> FleetError:
    if issubclass(kind, MalformedInput):
        return kind("identifier", "is none")
    if issubclass(kind, InvalidRequest | WrongSettings):
        return kind([Fault("MaxResults", "is none"), Fault("Sort", "is none")])
    if kind is TooManyAttempts:
        return TooManyAttempts(7)
    if kind is GatewayTooOld:
        return GatewayTooOld("ack", Version(2, 4, 0), Version(2, 0, 0))
    return kind("for a reason")


def _build_problem(code: str, status: int) -> HttpResponse:
    body = {"type": "about:blank", "title": "x", "status": status, "detail": "x", "instance": "/"}
    text = json.dumps({**body, "code": code, "errors": []}).encode()
    return HttpResponse(status=status, body=text, content_type="application/problem+json")


def _encode_error(error: Exception) -> HttpResponse:
    """Build the response of the service to this error."""
    scope: dict[str, Any] = {"type": "http", "method": "GET", "raw_path": b"/api/v1/x", "headers": []}
    response = build_problem_response(Request(scope), error)  # type: ignore[arg-type] # only the parts of a scope that are read
    headers = {name.lower(): value for name, value in response.headers.items()}
    return HttpResponse(
        status=response.status_code or 0,
        body=response.content,
        content_type=str(response.media_type),
        retry_after=int(headers["retry-after"]) if "retry-after" in headers else None,
    )


@pytest.mark.rule("rest-10")
@each_row("kind", _list_errors(Refused, Unavailable, Unanswered, MalformedInput, GatewayTooOld))
def test_an_error_is_rebuilt_as_its_class(kind: type[FleetError]) -> None:
    original = _create_error(kind)
    decoded = decode_error(_encode_error(original), BASE_URL)
    assert type(decoded) is kind
    if not isinstance(original, Unavailable):  # its details stay in the service
        assert str(decoded) == str(original)


def test_damaged_samples_are_rebuilt_without_the_path() -> None:
    decoded = decode_error(_encode_error(errors.SamplesDamaged(Path("day.seg"), "flipped")), BASE_URL)
    assert type(decoded) is errors.SamplesDamaged
    assert "day.seg" not in str(decoded)


def test_field_errors_are_rebuilt() -> None:
    decoded = decode_error(_encode_error(_create_error(InvalidRequest)), BASE_URL)
    assert isinstance(decoded, InvalidRequest)
    assert decoded.faults == (Fault("MaxResults", "is none"), Fault("Sort", "is none"))


def test_the_seconds_to_wait_are_rebuilt() -> None:
    decoded = decode_error(_encode_error(TooManyAttempts(7)), BASE_URL)
    assert isinstance(decoded, TooManyAttempts)
    assert decoded.retry_after == 7
    by_default = decode_error(_encode_error(TooManySubscribers("too many subscribers")), BASE_URL)
    assert isinstance(by_default, TooManySubscribers)
    assert (by_default.retry_after, str(by_default)) == (10, "too many subscribers")
    with_seconds = decode_error(_encode_error(TooManySubscribers("too many subscribers", 7)), BASE_URL)
    assert isinstance(with_seconds, TooManySubscribers)
    assert with_seconds.retry_after == 7


def test_an_internal_error_is_sent_without_details() -> None:
    decoded = decode_error(_encode_error(RuntimeError("hunter22")), BASE_URL)
    assert type(decoded) is Unavailable
    assert "hunter22" not in str(decoded)


@each_row(
    ("status", "kind"),
    [(400, Refused), (401, errors.NotLoggedIn), (404, NotFound), (418, Refused), (500, Unavailable)],
)
def test_an_unknown_code_becomes_the_error_of_its_status(status: int, kind: type[FleetError]) -> None:
    assert type(decode_error(_build_problem("new", status), BASE_URL)) is kind


@each_row("code", ["service-unreachable", "declined", "unusable-database", "error"])
def test_a_code_of_a_local_error_becomes_the_error_of_its_status(code: str) -> None:
    assert type(decode_error(_build_problem(code, 409), BASE_URL)) is errors.Conflict


@each_row(
    ("status", "kind"),
    [
        (404, ServiceRefused),
        (301, ServiceRefused),
        (401, ServiceRefused),
        (502, Unavailable),
        (503, Unavailable),
    ],
)
def test_a_page_of_another_server_is_not_a_response_of_the_service(
    status: int, kind: type[FleetError]
) -> None:
    decoded = decode_error(HttpResponse(status=status, body=b"<html>", content_type="text/html"), BASE_URL)
    assert type(decoded) is kind
    assert BASE_URL in str(decoded)


def test_a_secret_in_a_response_is_redacted() -> None:
    error = _encode_error(NotFound("no hunter2222 here\x1b[1m"))
    assert str(decode_error(error, BASE_URL, secrets=["hunter2222"])) == "no … here[1m"


def test_an_invalid_password_that_is_a_word_of_the_message_is_not_redacted() -> None:
    text = "wrong user name or password"
    error = _encode_error(WrongCredentials(text))
    assert str(decode_error(error, BASE_URL, secrets=["wrong", "password"])) == text


@each_row("kind", _list_errors(Refused, Unavailable, Unanswered, MalformedInput, GatewayTooOld))
def test_an_error_can_be_pickled(kind: type[FleetError]) -> None:
    decoded = decode_error(_encode_error(_create_error(kind)), BASE_URL)
    unpickled = pickle.loads(pickle.dumps(decoded))  # noqa: S301 # pickled in the same line
    assert (type(unpickled), str(unpickled)) == (type(decoded), str(decoded))


def test_a_body_limit_of_a_proxy_is_distinguished_from_that_of_the_service() -> None:
    page = HttpResponse(status=413, body=b"<html>413 Request Entity Too Large", content_type="text/html")
    by_proxy = decode_error(page, BASE_URL)
    assert isinstance(by_proxy, BodyTooLarge)
    assert "a proxy in front of the service" in str(by_proxy)
    assert "client_max_body_size" in str(by_proxy)
    by_service = decode_error(_encode_error(BodyTooLarge("the image is larger than 1 MiB")), BASE_URL)
    assert (type(by_service), str(by_service)) == (BodyTooLarge, "the image is larger than 1 MiB")


@pytest.mark.rule("rest-160")
def test_reasons_of_a_service_that_is_not_ready_are_decoded_even_unknown_ones() -> None:
    reasons = [
        {"code": "disk-full", "text": "The disk is full."},
        {"code": "new", "text": "It is late.", "x": 1},
    ]
    body = json.dumps({"status": "unavailable", "reasons": reasons}).encode()
    decoded = decode_error(HttpResponse(status=503, body=body, content_type="application/json"), BASE_URL)
    assert (type(decoded), str(decoded)) == (Unavailable, "The disk is full. It is late.")
    without_reasons = decode_error(
        HttpResponse(status=503, body=b"{}", content_type="application/json"), BASE_URL
    )
    assert (type(without_reasons), str(without_reasons)) == (
        Unavailable,
        f"{BASE_URL} responds with HTTP status 503",
    )

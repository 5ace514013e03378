"""An error of the service is the same error at the client."""

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
    TooManyListeners,
    Unanswered,
    Unavailable,
)
from meshfleet.errors.protocol import GatewayTooOld, WireError
from meshfleet.protocol.ids import Version
from meshfleet.service.http.problems import build_problem_response
from tests.row_tables import each_row

PLACE = "https://fleet.example.org"


def _tree(error: type[FleetError]) -> list[type[FleetError]]:
    return [error, *(below for child in error.__subclasses__() for below in _tree(child))]


def _ours(*families: type[FleetError]) -> list[type[FleetError]]:
    return [
        each
        for family in families
        for each in _tree(family)
        if each.__module__.startswith("meshfleet.errors")
    ]


def _raised(kind: type[FleetError]) -> FleetError:
    if issubclass(kind, WireError):
        return kind("identifier", "is none")
    if issubclass(kind, InvalidRequest):
        return kind([Fault("MaxResults", "is none"), Fault("Sort", "is none")])
    if kind is TooManyAttempts:
        return TooManyAttempts(7)
    if kind is GatewayTooOld:
        return GatewayTooOld("ack", Version(2, 4, 0), Version(2, 0, 0))
    return kind("for a reason")


def _problem(code: str, status: int) -> HttpResponse:
    body = {"type": "about:blank", "title": "x", "status": status, "detail": "x", "instance": "/"}
    text = json.dumps({**body, "code": code, "errors": []}).encode()
    return HttpResponse(status=status, body=text, content_type="application/problem+json")


def _told(error: Exception) -> HttpResponse:
    """What the service answers, as it came over the network."""
    scope: dict[str, Any] = {"type": "http", "method": "GET", "raw_path": b"/api/v1/x", "headers": []}
    said = build_problem_response(Request(scope), error)  # type: ignore[arg-type] # as much of a scope as it looks at
    headers = {name.lower(): value for name, value in said.headers.items()}
    return HttpResponse(
        status=said.status_code or 0,
        body=said.content,
        content_type=str(said.media_type),
        retry_after=int(headers["retry-after"]) if "retry-after" in headers else None,
    )


@pytest.mark.rule("rest-10")
@each_row("kind", _ours(Refused, Unavailable, Unanswered, WireError, GatewayTooOld))
def test_an_error_comes_over_as_the_class_that_was_raised(kind: type[FleetError]) -> None:
    raised = _raised(kind)
    told = decode_error(_told(raised), PLACE)
    assert type(told) is kind
    if not isinstance(raised, Unavailable):  # of which nobody outside learns more
        assert str(told) == str(raised)


def test_damaged_samples_come_over_too() -> None:
    told = decode_error(_told(errors.SamplesDamaged(Path("day.seg"), "flipped")), PLACE)
    assert type(told) is errors.SamplesDamaged
    assert "day.seg" not in str(told)


def test_fields_come_over_one_by_one() -> None:
    told = decode_error(_told(_raised(InvalidRequest)), PLACE)
    assert isinstance(told, InvalidRequest)
    assert told.faults == (Fault("MaxResults", "is none"), Fault("Sort", "is none"))


def test_the_time_to_wait_comes_over() -> None:
    told = decode_error(_told(TooManyAttempts(7)), PLACE)
    assert isinstance(told, TooManyAttempts)
    assert told.retry_after == 7
    listeners = decode_error(_told(TooManyListeners("so many listen")), PLACE)
    assert isinstance(listeners, TooManyListeners)
    assert (listeners.retry_after, str(listeners)) == (10, "so many listen")
    patient = decode_error(_told(TooManyListeners("so many listen", 7)), PLACE)
    assert isinstance(patient, TooManyListeners)
    assert patient.retry_after == 7


def test_what_went_wrong_inside_is_told_without_detail() -> None:
    told = decode_error(_told(RuntimeError("hunter22")), PLACE)
    assert type(told) is Unavailable
    assert "hunter22" not in str(told)


@each_row(
    ("status", "kind"),
    [(400, Refused), (401, errors.NotLoggedIn), (404, NotFound), (418, Refused), (500, Unavailable)],
)
def test_a_code_of_the_future_is_told_by_its_status(status: int, kind: type[FleetError]) -> None:
    assert type(decode_error(_problem("new", status), PLACE)) is kind


@each_row("code", ["service-unreachable", "declined", "wrong-settings", "error"])
def test_an_error_that_no_service_tells_of_itself_is_told_by_its_status(code: str) -> None:
    assert type(decode_error(_problem(code, 409), PLACE)) is errors.Conflict


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
def test_a_page_of_somebody_else_is_no_answer_of_a_service(status: int, kind: type[FleetError]) -> None:
    told = decode_error(HttpResponse(status=status, body=b"<html>", content_type="text/html"), PLACE)
    assert type(told) is kind
    assert PLACE in str(told)


def test_a_secret_that_the_service_repeats_is_not_repeated_again() -> None:
    told = decode_error(_told(NotFound("no hunter22 here\x1b[1m")), PLACE, secrets=["hunter22"])
    assert str(told) == "no … here[1m"


@each_row("kind", _ours(Refused, Unavailable, Unanswered, WireError, GatewayTooOld))
def test_an_error_survives_a_process_boundary(kind: type[FleetError]) -> None:
    told = decode_error(_told(_raised(kind)), PLACE)
    again = pickle.loads(pickle.dumps(told))  # noqa: S301 # our own
    assert (type(again), str(again)) == (type(told), str(told))


def test_a_proxy_with_a_limit_on_bodies_is_told_apart_from_the_service() -> None:
    page = HttpResponse(status=413, body=b"<html>413 Request Entity Too Large", content_type="text/html")
    by_proxy = decode_error(page, PLACE)
    assert isinstance(by_proxy, BodyTooLarge)
    assert "a proxy in front of the service" in str(by_proxy)
    assert "client_max_body_size" in str(by_proxy)
    by_service = decode_error(_told(BodyTooLarge("the image is larger than 1 MiB")), PLACE)
    assert (type(by_service), str(by_service)) == (BodyTooLarge, "the image is larger than 1 MiB")


@pytest.mark.rule("rest-160")
def test_the_reasons_of_a_service_that_is_not_ready_come_over_also_those_of_the_future() -> None:
    reasons = [
        {"code": "disk-full", "text": "The disk is full."},
        {"code": "new", "text": "It is late.", "x": 1},
    ]
    body = json.dumps({"status": "unavailable", "reasons": reasons}).encode()
    told = decode_error(HttpResponse(status=503, body=body, content_type="application/json"), PLACE)
    assert (type(told), str(told)) == (Unavailable, "The disk is full. It is late.")
    strange = decode_error(HttpResponse(status=503, body=b"{}", content_type="application/json"), PLACE)
    assert (type(strange), str(strange)) == (Unavailable, f"{PLACE} answers with HTTP status 503")

"""Preparation of requests: any body is accepted or refused with a named field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.errors import FleetError
from meshfleet.protocol import requests
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.payload import decode_object
from meshfleet.rest.requests import NewRequest, SentRequest
from meshfleet.service.requests.prepared_request import prepare_request
from tests.examples import examples

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["", "ff", "2011", "1.2.3", "on", 2**70, -1, 256]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
SECRETS = {"key", "publicKey"}


@settings(max_examples=examples(40))
@given(
    st.sampled_from(sorted(BUILTIN_CATALOGUE.names)),
    JSON,
    st.none() | st.dictionaries(st.text(), JSON, max_size=3),
)
def test_any_value_of_any_property_is_sent_unchanged_or_refused(name: str, value: Any, ext: Any) -> None:
    optional_fields = {} if ext is None else {"ext": ext}
    body = NewRequest(operation=Operation.WRITE_DECODED, identifier=name, value=value, **optional_fields)
    try:
        prepared = prepare_request(body)
    except FleetError as exc:
        assert exc.http in {400, 413}  # noqa: PT017 # the status depends on the value
        return
    sent = decode_object(requests.encode_request(prepared.request))
    assert sent.get("value") == value
    assert sent.get("ext") == ext


_FIELDS = {
    "value": JSON | st.sampled_from(["ff", None]),
    "ext": st.dictionaries(st.text(), JSON, max_size=2),
    "priority": st.integers(0, 4),
    "extenderId": st.sampled_from(["C0FFEE0000E1", "c0ffee0000e1", "x"]),
    "accessType": st.sampled_from(["legacy", "unprovisioned"]),
    "publicKey": st.sampled_from(["aa" * 32, "aa" * 64, "abc"]),
    "key": st.sampled_from(["bb" * 16, "bb" * 32, "zz"]),
    "time": st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00Z", "soon"]),
    "type": st.integers(0, 2),
}
_COMMON_FIELDS = {
    "gateway": st.sampled_from(["02005e000001", "bmac-02005e000001", "x"]),
    "timeoutMs": st.integers(100, 120_000),
}
_ACCESS_FIELDS = {"priority", "extenderId", "accessType", "publicKey", "key"}
_FIELDS_BY_OPERATION = {
    "apiversion": {"priority"},
    "read": _ACCESS_FIELDS,
    "read-decoded": _ACCESS_FIELDS,
    "write": {"value", *_ACCESS_FIELDS},
    "write-decoded": {"value", "ext", *_ACCESS_FIELDS},
    "ack": {"time", "type", "priority"},
    "ack-decoded": {"time", "type", "priority"},
}


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Draw bodies that are mostly valid, sometimes with fields of other operations."""
    operation = draw(st.sampled_from(sorted(_FIELDS_BY_OPERATION)))
    own = draw(st.sets(st.sampled_from(sorted(_FIELDS_BY_OPERATION[operation]))))
    foreign = (
        draw(st.sets(st.sampled_from(sorted(_FIELDS)), max_size=2)) if draw(st.integers(0, 9)) == 9 else ()
    )
    fields = {name: draw(_FIELDS[name]) for name in {*own, *foreign}}
    fields |= draw(st.fixed_dictionaries({}, optional=_COMMON_FIELDS))
    if operation != "apiversion":
        valid_identifier = "temperature" if operation.endswith("decoded") else "8100"
        fields["identifier"] = draw(
            st.just(valid_identifier) | st.sampled_from(["", "80", "a/b", "#", valid_identifier])
        )
    return {"operation": operation, **fields}


@pytest.mark.rule("request-31", "request-32", "rest-97")
@settings(max_examples=examples(50))
@given(bodies())
def test_any_body_is_accepted_without_exposing_keys_or_refused(fields: dict[str, Any]) -> None:
    body = msgspec.convert(fields, NewRequest)
    try:
        prepared = prepare_request(body)
    except FleetError as exc:
        status, message = exc.http, str(exc)
        assert status in {400, 413}
        assert not any(str(fields.get(secret, "?")) in message for secret in SECRETS)
        return
    sent = decode_object(requests.encode_request(prepared.request))
    given_names = fields.keys() - {"operation", "identifier", "gateway", "timeoutMs"}
    # Every given field is sent, except those with their default value.
    assert sent.keys() <= given_names
    assert all(fields[each] in (2, None, "") for each in given_names - sent.keys())
    redacted = msgspec.to_builtins(prepared.redacted)
    assert redacted.keys() <= {"operation", "identifier", "timeoutMs", *given_names} - SECRETS
    assert prepared.timeout * 1000 == pytest.approx(fields.get("timeoutMs", 15_000))
    assert msgspec.json.decode(msgspec.json.encode(prepared.redacted), type=SentRequest) == prepared.redacted
    assert repr(prepared).count("bb" * 16) == 0
    assert repr(body).count("bb" * 16) == 0

"""Access tokens: their claims, and the refusal of forged or expired ones."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors import NotLoggedIn
from meshfleet.service.accounts.bearer import TokenSigner
from tests.row_tables import each_row

SECRET = bytes(range(32))
NOW = 1_700_000_000
TOKENS = TokenSigner(SECRET)


def build_claims(**other: object) -> dict[str, Any]:
    """Return the claims of a valid token with these changes; None removes a claim."""
    claims = {
        "aud": "meshfleet",
        "sub": "ada",
        "sid": "login",
        "jti": "one",
        "iat": NOW,
        "exp": NOW + 1800,
        **other,
    }
    return {name: value for name, value in claims.items() if value is not None}


def forge_token(header: dict[str, object], body: dict[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(body).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.mark.rule("auth-6")
def test_a_token_is_valid_for_thirty_minutes() -> None:
    claims = jwt.decode(TOKENS.issue("ada", "login", NOW + 0.9), options={"verify_signature": False})
    assert (claims["iat"], claims["exp"]) == (NOW, NOW + 1800)


def test_a_token_contains_user_session_and_expiry() -> None:
    token = TOKENS.verify(TOKENS.issue("ada", "login", NOW), NOW)
    assert (token.username, token.session, token.expires_at) == ("ada", "login", NOW + 1800)


def test_two_tokens_issued_at_the_same_time_differ() -> None:
    assert TOKENS.issue("ada", "login", NOW) != TOKENS.issue("ada", "login", NOW)


def test_the_claims_of_this_module_make_a_valid_token() -> None:
    """Otherwise the refusals below would prove nothing."""
    assert TOKENS.verify(jwt.encode(build_claims(), SECRET, "HS256"), NOW).username == "ada"


@pytest.mark.rule("auth-7")
@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
def test_another_algorithm_is_refused_even_with_the_right_secret(algorithm: str) -> None:
    token = jwt.encode(build_claims(), SECRET * 2, algorithm)
    with pytest.raises(NotLoggedIn):
        TokenSigner(SECRET * 2).verify(token, NOW)


@pytest.mark.rule("auth-7")
@each_row("algorithm", ["none", "None", "NONE", "", "RS256", "ES256", "hs256", None, 5])
def test_an_unsigned_token_is_refused_for_any_algorithm(algorithm: object) -> None:
    for header in ({"alg": algorithm, "typ": "JWT"}, {"alg": algorithm}):
        with pytest.raises(NotLoggedIn):
            TOKENS.verify(forge_token(header, build_claims()), NOW)


@pytest.mark.rule("auth-7")
@each_row("algorithm", ["none", "HS512", "RS256", "hs256"])
def test_a_valid_signature_with_another_algorithm_in_the_header_is_refused(algorithm: str) -> None:
    head, body, signature = TOKENS.issue("ada", "login", NOW).split(".")
    other = (
        base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "typ": "JWT"}).encode()).rstrip(b"=").decode()
    )
    assert other != head
    with pytest.raises(NotLoggedIn):
        TOKENS.verify(f"{other}.{body}.{signature}", NOW)


@pytest.mark.rule("auth-7")
@each_row("secret", [b"", bytes(32), SECRET[::-1], SECRET[:31], b"meshfleet" * 4])
def test_a_token_signed_with_another_secret_is_refused(secret: bytes) -> None:
    with pytest.raises(NotLoggedIn):
        TOKENS.verify(_sign_token(build_claims(), secret), NOW)


def _sign_token(body: dict[str, Any], secret: bytes) -> str:
    # By hand: the library refuses to sign invalid claims.
    unsigned = forge_token({"alg": "HS256", "typ": "JWT"}, body).rpartition(".")[0]
    algorithm = jwt.get_algorithm_by_name("HS256")
    signature = algorithm.sign(unsigned.encode(), secret)
    return f"{unsigned}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


@pytest.mark.rule("auth-7")
@each_row("other", ["other", "Meshfleet", "", ["other"], [], 5, "meshfleet "])
def test_a_token_for_another_audience_is_refused(other: object) -> None:
    with pytest.raises(NotLoggedIn):
        TOKENS.verify(_sign_token(build_claims(aud=other), SECRET), NOW)


@pytest.mark.rule("auth-7")
@each_row("name", ["aud", "exp", "iat", "jti", "sid", "sub"])
def test_a_token_without_a_claim_is_refused(name: str) -> None:
    with pytest.raises(NotLoggedIn):
        TOKENS.verify(jwt.encode(build_claims(**{name: None}), SECRET, "HS256"), NOW)


@pytest.mark.rule("auth-6", "auth-7")
@each_row(
    ("now", "is_valid"),
    [
        (NOW - 3600, False),
        (NOW - 5.001, False),
        (NOW - 5, True),  # tolerated clock difference
        (NOW, True),
        (NOW + 1799.999, True),
        (NOW + 1800, False),
        (NOW + 1805, False),
        (NOW + 10**9, False),
    ],
)
def test_a_token_is_valid_from_its_issue_until_its_expiry(now: float, *, is_valid: bool) -> None:
    token = TOKENS.issue("ada", "login", NOW)
    if is_valid:
        assert TOKENS.verify(token, now).session == "login"
    else:
        with pytest.raises(NotLoggedIn):
            TOKENS.verify(token, now)


@pytest.mark.rule("auth-7")
def test_a_token_with_any_character_changed_is_refused() -> None:
    token = TOKENS.issue("ada", "login", NOW)
    for position, char in enumerate(token[:-1]):  # the last character has unused bits
        changed = token[:position] + ("A" if char != "A" else "B") + token[position + 1 :]
        with pytest.raises(NotLoggedIn):
            TOKENS.verify(changed, NOW)


@given(st.text())
def test_an_arbitrary_text_is_refused(text: str) -> None:
    with pytest.raises(NotLoggedIn):
        TOKENS.verify(text, NOW)


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text()), st.binary())
def test_a_text_in_the_form_of_a_token_is_refused(header: dict[str, object], signature: bytes) -> None:
    with pytest.raises(NotLoggedIn):
        TOKENS.verify(forge_token({**header, "alg": "HS256"}, build_claims(), signature), NOW)


def test_a_refusal_reveals_neither_token_nor_secret() -> None:
    token = jwt.encode(build_claims(), bytes(32), "HS256")
    with pytest.raises(NotLoggedIn) as caught:
        TOKENS.verify(token, NOW)
    assert str(caught.value) == "the access token is invalid or expired"
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)

"""Logging in, staying in, and going."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.http.running import PASSWORD

if TYPE_CHECKING:
    from tests.service.http.running import Running


@pytest.mark.rule("auth-11")
def test_a_token_tells_whose_it_is(service: Running) -> None:
    username = service.new_user()
    with service.client(service.log_in(username)) as client:
        assert client.get("/api/v1/auth/me").json() == {
            "username": username,
            "role": "viewer",
            "kind": "user",
        }


def test_a_wrong_password_is_refused(service: Running) -> None:
    answer = service.anonymous.post(
        "/api/v1/auth/login", json={"username": service.new_user(), "password": PASSWORD + "x"}
    )
    assert (answer.status_code, answer.json()["code"]) == (401, "wrong-credentials")

"""Delays between connection attempts: they grow, differ between clients, and each reason is logged once."""

from __future__ import annotations

import asyncio
from itertools import islice, repeat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.mqtt import ConnectionClosed, ConnectionLost, ConnectionRefused
from meshfleet.mqtt.client import ExponentialBackoff
from meshfleet.mqtt.codec.packets import Connack, Subscribe
from tests.mqtt.client.scripted_broker import NO_RECONNECT, ScriptedBroker, wait_until, with_timeout

if TYPE_CHECKING:
    from collections.abc import Iterator


@given(st.floats(0.001, 10), st.floats(1, 1000))
def test_each_delay_is_between_half_and_all_of_a_limit_that_doubles_up_to_the_maximum(
    first: float, times: float
) -> None:
    delays = ExponentialBackoff(initial=first, maximum=first * times)
    for attempt, delay in enumerate(islice(delays, 20)):
        limit = min(first * 2**attempt, first * times)
        assert limit / 2 <= delay <= limit


@given(st.integers(3, 100))
def test_the_delays_stay_at_the_limit(turns: int) -> None:
    delays = islice(ExponentialBackoff(initial=1, maximum=8), turns, None)
    assert all(4 <= delay <= 8 for delay in islice(delays, 50))


def test_the_delays_of_two_clients_differ() -> None:
    delays = ExponentialBackoff(initial=1, maximum=1)
    one, other = (list(islice(delays, 50)) for _ in range(2))
    assert one != other
    assert max(one) - min(one) > 0.1  # spread over the allowed half


def test_the_delays_start_again_for_each_iterator() -> None:
    delays = ExponentialBackoff(initial=1, maximum=1000)
    assert all(delay > 1 for delay in islice(delays, 2, 5))
    assert next(iter(delays)) <= 1


def test_the_default_delays_start_below_a_second_and_end_at_a_minute() -> None:
    delays = list(islice(ExponentialBackoff(), 30))
    assert delays[0] <= 0.5
    assert all(30 <= delay <= 60 for delay in delays[10:])


class TwoRetries(ExponentialBackoff, frozen=True):
    """Two attempts at once, and no third one during the test."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.001, 0.001)
        yield from repeat(3600)


@pytest.mark.anyio
async def test_connection_error_is_the_reason_while_there_is_no_connection() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        assert client.connection_error is None
        broker.refuse()
        peer.close()
        await wait_until(lambda: isinstance(client.connection_error, ConnectionRefused))
        assert "it is unavailable" in str(client.connection_error)
        broker.connack = Connack()
        await broker.accept()
        await wait_until(lambda: client.connection_error is None)


@pytest.mark.anyio
async def test_retry_first_connect_waits_for_the_first_connection() -> None:
    async with ScriptedBroker() as broker:
        broker.refuse()
        async with broker.create_client(retry_first_connect=True) as client:
            publishing = asyncio.create_task(client.publish("t", b"x"))
            assert isinstance(client.connection_error, ConnectionRefused)
            await wait_until(lambda: broker.refused > 2)
            broker.connack = Connack()
            peer = await broker.accept()
            peer.acknowledge(await peer.publishes(1))
            await with_timeout(publishing)


@pytest.mark.anyio
async def test_each_reason_for_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedBroker() as broker, broker.create_client(user=("theuser", "t0psecret")) as client:
        for _ in range(2):
            broker.connack = Connack()
            peer = await broker.accept()
            await wait_until(lambda: client.connection_error is None)
            broker.refuse()
            refused_before = broker.refused
            peer.close()
            await wait_until(lambda refused_before=refused_before: broker.refused > refused_before + 4)  # type: ignore[misc] # bound in this iteration
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    lost = f"ours to {broker.address} has no connection: the broker closed the connection"
    refused = f"ours to {broker.address} has no connection: {broker.address} refuses the connection: "
    refused += "it is unavailable (return code 3)"
    assert warnings == [lost, refused] * 2
    assert not any(secret in caplog.text for secret in ("theuser", "t0psecret"))


@pytest.mark.anyio
async def test_after_a_short_connection_the_delays_continue() -> None:
    async with (
        ScriptedBroker() as broker,
        broker.create_client(backoff=TwoRetries(reset_after=3600)) as client,
    ):
        for _ in range(3):
            (await broker.accept()).close()
        await wait_until(lambda: isinstance(client.connection_error, ConnectionLost))
        assert len(broker.peers) == 3


@pytest.mark.anyio
async def test_after_a_stable_connection_the_delays_start_again() -> None:
    async with ScriptedBroker() as broker, broker.create_client(backoff=TwoRetries(reset_after=0)):
        for _ in range(9):
            (await broker.accept()).close()
        await broker.accept()


@pytest.mark.anyio
async def test_without_retry_first_connect_there_is_one_attempt() -> None:
    async with ScriptedBroker() as broker:
        broker.refuse()
        with pytest.raises(ConnectionRefused):
            await with_timeout(broker.create_client(backoff=NO_RECONNECT).__aenter__())
        assert broker.refused == 1


class FailingBackoff(ExponentialBackoff, frozen=True):
    """Backoff with a defect."""

    def __iter__(self) -> Iterator[float]:
        return (1 / number for number in (0,))


@pytest.mark.anyio
async def test_a_defect_while_reconnecting_is_logged_and_fails_all_waiting_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedBroker() as broker, broker.create_client(backoff=FailingBackoff()) as client:
        peer = await broker.accept()
        calls = (client.receive(), client.publish("t", b"x"), client.subscribe("a"))
        waiting = [asyncio.create_task(call) for call in calls]
        await peer.publishes(1)
        await peer.expect(Subscribe)
        peer.close()
        errors = await with_timeout(asyncio.gather(*waiting, return_exceptions=True))
        assert [type(error) for error in errors] == [ConnectionClosed] * 3
        assert all("because of a defect" in str(error) for error in errors)
        assert "because of a defect" in str(client.connection_error)
        with pytest.raises(ConnectionClosed, match="because of a defect"):
            await anext(client)
    assert "has failed" in caplog.text

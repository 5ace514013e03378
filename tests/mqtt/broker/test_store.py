"""What is written down is what is read again, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError

from meshfleet.db.tables import broker_retained, broker_session
from meshfleet.errors.startup import UnusableDatabase
from meshfleet.mqtt.broker import load_stored_state
from meshfleet.mqtt.broker.store import (
    MessageRow,
    PendingChanges,
    RetainedRow,
    SessionRow,
    check_ownership,
    take_ownership,
    write_changes,
)
from meshfleet.mqtt.codec.packets import MAX_PACKET_ID
from tests.examples import examples
from tests.row_tables import each_row

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.mqtt.broker import StoredState

pytestmark = pytest.mark.both_databases

Key = TypeVar("Key")
Row = TypeVar("Row")

LARGEST: Final = 2**63 - 1

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=50)
times = st.integers(0, LARGEST)
numbers = st.integers(1, 4)
ids = st.sampled_from([1, 2, 3, MAX_PACKET_ID])
positions = st.sampled_from([0, 1, 2, 2 * MAX_PACKET_ID, LARGEST])

session_rows = st.builds(SessionRow, account=texts, client_id=texts, left_at=st.none() | times)
retained_rows = st.builds(RetainedRow, payload=st.binary(), qos=st.integers(0, 1), account=texts)


@st.composite
def steps(draw: st.DrawFn) -> list[PendingChanges]:
    """Changes of several rounds, as a broker makes them: what belongs to a session comes with or after it."""
    alive: set[int] = set()
    rounds = []
    for _ in range(draw(st.integers(1, 4))):
        changes = PendingChanges()
        for number in draw(st.sets(numbers)):
            if number in alive and draw(st.booleans()):
                alive.discard(number)
                changes.delete_session(number)
            else:
                changes.sessions[number] = draw(session_rows)
                alive.add(number)
        owners, most = st.sampled_from(sorted(alive) or [1]), 4 * bool(alive)
        keys = st.tuples(owners, ids)
        filters = st.tuples(owners, texts | st.just("a"))
        changes.subscriptions = draw(st.dictionaries(filters, st.none() | st.integers(0, 1), max_size=most))
        changes.unreleased_ids = draw(st.dictionaries(keys, st.booleans(), max_size=most))
        changes.retained = draw(st.dictionaries(texts | st.just("a"), st.none() | retained_rows, max_size=3))
        for key in draw(st.sets(st.tuples(owners, positions), max_size=most)):
            row = MessageRow(draw(texts), draw(st.binary()), draw(st.booleans()), draw(st.none() | times))
            changes.messages[key] = draw(st.sampled_from([row, row, None]))
        rounds.append(changes)
    return rounds


class Model:
    """The same, kept in dictionaries."""

    def __init__(self) -> None:
        self.all = PendingChanges()
        self.owners: dict[int, tuple[str, str]] = {}

    def take(self, changes: PendingChanges) -> None:
        kept = self.all
        for number, row in changes.sessions.items():
            if row is None:
                kept.delete_session(number)
                del kept.sessions[number]
                self.owners.pop(number, None)
            else:
                # A session never changes hands.
                account, client_id = self.owners.setdefault(number, (row.account, row.client_id))
                kept.sessions[number] = SessionRow(account, client_id, row.left_at)
        kept.subscriptions.update(changes.subscriptions)
        for key, message in changes.messages.items():
            # No position is given twice: a row that is there is the same message, committed before.
            kept.messages[key] = message and (kept.messages.get(key) or message)
        kept.unreleased_ids.update(changes.unreleased_ids)
        kept.retained.update(changes.retained)

    def check(self, saved: StoredState) -> None:
        kept = self.all
        assert saved.sessions == kept.sessions
        assert {(number, wanted): qos for number, wanted, qos in saved.subscriptions} == _there(
            kept.subscriptions
        )
        assert set(saved.unreleased_ids) == {key for key, is_open in kept.unreleased_ids.items() if is_open}
        assert saved.retained == _there(kept.retained)
        rows = sorted(_there(kept.messages).items())
        letters = [
            (key, (it.topic, it.payload, it.retain, it.expires_at, it.qos)) for *key, it in saved.messages
        ]
        assert letters == [([*key], (*row, 1)) for key, row in rows]


def _there(rows: dict[Key, Row | None]) -> dict[Key, Row]:
    return {key: row for key, row in rows.items() if row is not None}


def session(number: int = 1) -> PendingChanges:
    """A session without anything."""
    changes = PendingChanges()
    changes.sessions[number] = SessionRow("user ada", f"client {number}", None)
    return changes


def message(payload: bytes = b"{}") -> MessageRow:
    return MessageRow("a/b", payload, retain=False, until=None)


def put(database: Database, *rounds: PendingChanges) -> StoredState:
    """Write changes one after the other, and read everything."""
    for changes in rounds:
        database.write_now(write_changes, changes)
    return database.read_now(load_stored_state)


def _wipe(connection: Connection) -> None:
    for table in (broker_session, broker_retained):
        connection.execute(delete(table))


def _write_and_read(database: Database, rounds: list[PendingChanges]) -> None:
    database.write_now(_wipe)
    model = Model()
    for changes in rounds:
        model.take(changes)
        model.check(put(database, changes))


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=steps())
def test_what_is_written_is_read_again(database: Database, rounds: list[PendingChanges]) -> None:
    _write_and_read(database, rounds)


@pytest.mark.part("fuzz")
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=steps())
def test_whatever_is_written_is_read_again(database: Database, rounds: list[PendingChanges]) -> None:
    _write_and_read(database, rounds)


def test_an_empty_database_gives_nothing(database: Database) -> None:
    Model().check(database.read_now(load_stored_state))


def test_no_changes_are_nothing_to_write() -> None:
    assert not PendingChanges()
    assert session()


@each_row(
    "text",
    [
        "mt/gateway/ä/ß",
        "Ελληνικά/кириллица",
        "עברית/العربية",
        "中文/日本語/한국어",
        "👩‍🚀/🏳️‍🌈",
        "e\u0301",
        "\ufeff",
        "\U0010ffff",
        "'; DROP TABLE broker_session; --",
        "%s %(x)s ? :x {} \\ \\N \t \n \r \x01 \x7f",
        " ",
        "x" * 1024,
        "ä" * 512,
        "€" * 341,
    ],
)
def test_texts_of_any_script_stay_as_they_are(database: Database, text: str) -> None:
    changes = PendingChanges()
    changes.sessions[1] = SessionRow(text, text, None)
    changes.subscriptions[1, text] = 1
    changes.messages[1, 1] = MessageRow(text, b"", retain=False, until=None)
    changes.retained[text] = RetainedRow(b"", 0, text)
    database.write_now(_wipe)
    saved = put(database, changes)
    assert saved.sessions == {1: SessionRow(text, text, None)}
    assert saved.subscriptions == [(1, text, 1)]
    assert [letter.topic for *_, letter in saved.messages] == [text]
    assert saved.retained == {text: RetainedRow(b"", 0, text)}


def test_names_that_look_alike_are_two(database: Database) -> None:
    names = ["é", "e\u0301", "É", "x", "x ", "X"]
    changes = session()
    for name in names:
        changes.subscriptions[1, name] = 0
        changes.retained[name] = RetainedRow(name.encode(), 0, "user ada")
    saved = put(database, changes)
    assert {wanted for _, wanted, _ in saved.subscriptions} == set(names) == set(saved.retained)
    assert all(row.payload == name.encode() for name, row in saved.retained.items())


@each_row("payload", [b"", b"\0", bytes(range(256)), b"\xff\xfe", b"\\x00", b"\r\n\t", bytes(2**18)])
def test_payloads_of_any_bytes_stay_as_they_are(database: Database, payload: bytes) -> None:
    changes = session()
    changes.messages[1, 1] = message(payload)
    changes.retained["a"] = RetainedRow(payload, 1, "user ada")
    database.write_now(_wipe)
    saved = put(database, changes)
    assert [letter.payload for *_, letter in saved.messages] == [payload]
    assert saved.retained["a"].payload == payload


def test_ten_thousand_messages_come_back_in_their_order(database: Database) -> None:
    changes = session()
    for step in range(10_000):
        position = MAX_PACKET_ID - 5000 + step * 7919 % 10_000  # not written in their order
        changes.messages[1, position] = message(b"%d" % position)
    saved = put(database, changes)
    expected = list(range(MAX_PACKET_ID - 5000, MAX_PACKET_ID + 5000))
    assert [(at, int(letter.payload)) for _, at, letter in saved.messages] == [(at, at) for at in expected]
    settled = PendingChanges()
    settled.messages = dict.fromkeys(changes.messages, None)
    assert put(database, settled).messages == []


def test_the_messages_of_each_session_keep_their_order(database: Database) -> None:
    changes = session(1)
    changes.sessions.update(session(2).sessions)
    for key in [(2, 9), (1, 9), (2, 1), (1, MAX_PACKET_ID), (2, 5)]:
        changes.messages[key] = message()
    found = [(number, position) for number, position, _ in put(database, changes).messages]
    assert found == [(1, 9), (1, MAX_PACKET_ID), (2, 1), (2, 5), (2, 9)]


def test_a_batch_that_is_written_twice_is_written_once(database: Database) -> None:
    changes = session()
    changes.messages[1, 1] = message(b"once")
    saved = put(database, changes, changes)
    assert [(position, letter.payload) for _, position, letter in saved.messages] == [(1, b"once")]


def test_a_message_that_came_again_before_it_was_released_is_one(database: Database) -> None:
    first, again = session(), PendingChanges()
    first.unreleased_ids[1, 7] = again.unreleased_ids[1, 7] = True
    assert put(database, first, again).unreleased_ids == [(1, 7)]
    released = PendingChanges()
    released.unreleased_ids[1, 7] = False
    assert put(database, released, released).unreleased_ids == []


def test_with_a_session_goes_all_that_belongs_to_it_and_nothing_else(database: Database) -> None:
    changes = session(1)
    changes.sessions.update(session(2).sessions)
    for number in (1, 2):
        changes.subscriptions[number, "a"] = 1
        changes.messages[number, 1] = message()
        changes.unreleased_ids[number, 1] = True
    changes.retained["a"] = RetainedRow(b"x", 1, "user ada")
    ended = PendingChanges()
    ended.delete_session(1)
    saved = put(database, changes, ended)
    assert set(saved.sessions) == {2}
    assert saved.subscriptions == [(2, "a", 1)]
    assert [key for *key, _ in saved.messages] == [[2, 1]]
    assert saved.unreleased_ids == [(2, 1)]
    assert set(saved.retained) == {"a"}


def test_the_end_of_a_session_takes_what_was_to_be_written_for_it(database: Database) -> None:
    changes = session(1)
    changes.subscriptions[1, "a"] = 1
    changes.messages[1, 1] = message()
    changes.unreleased_ids[1, 1] = True
    changes.delete_session(1)
    assert len(changes.subscriptions) == len(changes.messages) == len(changes.unreleased_ids) == 0
    Model().check(put(database, changes))


def test_a_number_that_is_used_again_begins_with_nothing(database: Database) -> None:
    first = session()
    first.subscriptions[1, "a"] = 1
    first.messages[1, 1] = message()
    ended = PendingChanges()
    ended.delete_session(1)
    saved = put(database, first, ended, session())
    assert set(saved.sessions) == {1}
    assert len(saved.subscriptions) == len(saved.messages) == 0


def test_to_take_away_what_is_not_there_does_nothing(database: Database) -> None:
    changes = PendingChanges()
    changes.delete_session(9)
    changes.subscriptions[9, "a"] = changes.messages[9, 1] = changes.retained["a"] = None
    changes.unreleased_ids[9, 1] = False
    Model().check(put(database, changes, changes))


def test_what_goes_wrong_is_not_half_written(database: Database) -> None:
    changes = session()
    changes.messages[2, 1] = message()  # of a session that is not there
    with pytest.raises(IntegrityError):
        put(database, changes)
    Model().check(database.read_now(load_stored_state))


def test_a_payload_does_not_get_into_an_error(database: Database) -> None:
    changes = session()
    changes.messages[2, 1] = message(b"a-secret")
    with pytest.raises(IntegrityError) as caught:
        put(database, changes)
    assert "a-secret" not in str(caught.value)
    assert b"a-secret".hex() not in str(caught.value)


def test_who_took_the_tables_over_writes_and_who_had_them_no_longer_can(database: Database) -> None:
    first = database.write_now(take_ownership)
    database.write_now(check_ownership, first)
    second = database.write_now(take_ownership)
    database.write_now(check_ownership, second)
    with pytest.raises(UnusableDatabase, match="another Meshfleet process has taken over"):
        database.write_now(check_ownership, first)

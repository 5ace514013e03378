"""The broker loads what it persisted, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete
from sqlalchemy.exc import IntegrityError

from meshfleet.db.tables import broker_retained, broker_session
from meshfleet.errors.startup import UnusableDatabase
from meshfleet.mqtt.broker import StoredState, load_stored_state
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
    from meshfleet.db import Database

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
    """Draw the changes of several batches; as in a broker, rows of a session come with or after it."""
    sessions: set[int] = set()
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        changes = PendingChanges()
        for number in draw(st.sets(numbers)):
            if number in sessions and draw(st.booleans()):
                sessions.discard(number)
                changes.delete_session(number)
            else:
                changes.sessions[number] = draw(session_rows)
                sessions.add(number)
        session_ids, max_size = st.sampled_from(sorted(sessions) or [1]), 4 * bool(sessions)
        keys = st.tuples(session_ids, ids)
        filters = st.tuples(session_ids, texts | st.just("a"))
        changes.subscriptions = draw(
            st.dictionaries(filters, st.none() | st.integers(0, 1), max_size=max_size)
        )
        changes.unreleased_ids = draw(st.dictionaries(keys, st.booleans(), max_size=max_size))
        changes.retained = draw(st.dictionaries(texts | st.just("a"), st.none() | retained_rows, max_size=3))
        for key in draw(st.sets(st.tuples(session_ids, positions), max_size=max_size)):
            row = MessageRow(draw(texts), draw(st.binary()), draw(st.booleans()), draw(st.none() | times))
            changes.messages[key] = draw(st.sampled_from([row, row, None]))
        batches.append(changes)
    return batches


class Model:
    """Expected content of the tables, in dictionaries."""

    def __init__(self) -> None:
        self.all = PendingChanges()
        self.owners: dict[int, tuple[str, str]] = {}

    def apply(self, changes: PendingChanges) -> None:
        expected = self.all
        for number, row in changes.sessions.items():
            if row is None:
                expected.delete_session(number)
                del expected.sessions[number]
                self.owners.pop(number, None)
            else:
                # The account and client id of a session never change.
                account, client_id = self.owners.setdefault(number, (row.account, row.client_id))
                expected.sessions[number] = SessionRow(account, client_id, row.left_at)
        expected.subscriptions.update(changes.subscriptions)
        for key, message in changes.messages.items():
            # No position is used twice: an existing row is the same message, committed before.
            expected.messages[key] = message and (expected.messages.get(key) or message)
        expected.unreleased_ids.update(changes.unreleased_ids)
        expected.retained.update(changes.retained)

    def check(self, stored: StoredState) -> None:
        expected = self.all
        assert stored.sessions == expected.sessions
        assert {
            (number, topic_filter): qos for number, topic_filter, qos in stored.subscriptions
        } == _existing(expected.subscriptions)
        assert set(stored.unreleased_ids) == {
            key for key, is_open in expected.unreleased_ids.items() if is_open
        }
        assert stored.retained == _existing(expected.retained)
        rows = sorted(_existing(expected.messages).items())
        messages = [
            (key, (it.topic, it.payload, it.retain, it.expires_at, it.qos)) for *key, it in stored.messages
        ]
        assert messages == [([*key], (*row, 1)) for key, row in rows]


def _existing(rows: dict[Key, Row | None]) -> dict[Key, Row]:
    return {key: row for key, row in rows.items() if row is not None}


def session(number: int = 1) -> PendingChanges:
    """Return changes that create a session without anything else."""
    changes = PendingChanges()
    changes.sessions[number] = SessionRow("user ada", f"client {number}", None)
    return changes


def message(payload: bytes = b"{}") -> MessageRow:
    return MessageRow("a/b", payload, retain=False, until=None)


def write_and_load(database: Database, *batches: PendingChanges) -> StoredState:
    """Write changes one after the other, and load everything."""
    for changes in batches:
        database.write_now(write_changes, changes)
    return database.read_now(load_stored_state)


def _delete_all(connection: Connection) -> None:
    for table in (broker_session, broker_retained):
        connection.execute(delete(table))


def _check_against_model(database: Database, batches: list[PendingChanges]) -> None:
    database.write_now(_delete_all)
    model = Model()
    for changes in batches:
        model.apply(changes)
        model.check(write_and_load(database, changes))


@settings(max_examples=examples(20))
@given(batches=steps())
def test_written_changes_are_loaded_again(database: Database, batches: list[PendingChanges]) -> None:
    _check_against_model(database, batches)


@pytest.mark.part("fuzz")
@settings(max_examples=200)
@given(batches=steps())
def test_many_written_changes_are_loaded_again(database: Database, batches: list[PendingChanges]) -> None:
    _check_against_model(database, batches)


def test_an_empty_database_loads_as_empty_state(database: Database) -> None:
    Model().check(database.read_now(load_stored_state))


def test_changes_are_true_if_there_is_anything_to_write() -> None:
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
def test_texts_of_any_script_are_stored_unchanged(database: Database, text: str) -> None:
    changes = PendingChanges()
    changes.sessions[1] = SessionRow(text, text, None)
    changes.subscriptions[1, text] = 1
    changes.messages[1, 1] = MessageRow(text, b"", retain=False, until=None)
    changes.retained[text] = RetainedRow(b"", 0, text)
    database.write_now(_delete_all)
    stored = write_and_load(database, changes)
    assert stored.sessions == {1: SessionRow(text, text, None)}
    assert stored.subscriptions == [(1, text, 1)]
    assert [stored_message.topic for *_, stored_message in stored.messages] == [text]
    assert stored.retained == {text: RetainedRow(b"", 0, text)}


def test_similar_names_are_different_keys(database: Database) -> None:
    names = ["é", "e\u0301", "É", "x", "x ", "X"]
    changes = session()
    for name in names:
        changes.subscriptions[1, name] = 0
        changes.retained[name] = RetainedRow(name.encode(), 0, "user ada")
    stored = write_and_load(database, changes)
    assert {topic_filter for _, topic_filter, _ in stored.subscriptions} == set(names) == set(stored.retained)
    assert all(row.payload == name.encode() for name, row in stored.retained.items())


@each_row("payload", [b"", b"\0", bytes(range(256)), b"\xff\xfe", b"\\x00", b"\r\n\t", bytes(2**18)])
def test_payloads_of_any_bytes_are_stored_unchanged(database: Database, payload: bytes) -> None:
    changes = session()
    changes.messages[1, 1] = message(payload)
    changes.retained["a"] = RetainedRow(payload, 1, "user ada")
    database.write_now(_delete_all)
    stored = write_and_load(database, changes)
    assert [stored_message.payload for *_, stored_message in stored.messages] == [payload]
    assert stored.retained["a"].payload == payload


def test_ten_thousand_messages_are_loaded_in_order(database: Database) -> None:
    changes = session()
    for step in range(10_000):
        position = MAX_PACKET_ID - 5000 + step * 7919 % 10_000  # not written in order
        changes.messages[1, position] = message(b"%d" % position)
    stored = write_and_load(database, changes)
    expected = list(range(MAX_PACKET_ID - 5000, MAX_PACKET_ID + 5000))
    assert [(position, int(stored_message.payload)) for _, position, stored_message in stored.messages] == [
        (position, position) for position in expected
    ]
    acknowledged = PendingChanges()
    acknowledged.messages = dict.fromkeys(changes.messages, None)
    assert write_and_load(database, acknowledged).messages == []


def test_the_messages_of_each_session_keep_their_order(database: Database) -> None:
    changes = session(1)
    changes.sessions.update(session(2).sessions)
    for key in [(2, 9), (1, 9), (2, 1), (1, MAX_PACKET_ID), (2, 5)]:
        changes.messages[key] = message()
    found = [(number, position) for number, position, _ in write_and_load(database, changes).messages]
    assert found == [(1, 9), (1, MAX_PACKET_ID), (2, 1), (2, 5), (2, 9)]


def test_writing_a_batch_twice_has_the_same_effect_as_once(database: Database) -> None:
    changes = session()
    changes.messages[1, 1] = message(b"once")
    stored = write_and_load(database, changes, changes)
    assert [(position, stored_message.payload) for _, position, stored_message in stored.messages] == [
        (1, b"once")
    ]


def test_an_unreleased_packet_id_is_stored_once(database: Database) -> None:
    first, again = session(), PendingChanges()
    first.unreleased_ids[1, 7] = again.unreleased_ids[1, 7] = True
    assert write_and_load(database, first, again).unreleased_ids == [(1, 7)]
    released = PendingChanges()
    released.unreleased_ids[1, 7] = False
    assert write_and_load(database, released, released).unreleased_ids == []


def test_deleting_a_session_deletes_its_rows_and_no_others(database: Database) -> None:
    changes = session(1)
    changes.sessions.update(session(2).sessions)
    for number in (1, 2):
        changes.subscriptions[number, "a"] = 1
        changes.messages[number, 1] = message()
        changes.unreleased_ids[number, 1] = True
    changes.retained["a"] = RetainedRow(b"x", 1, "user ada")
    deletion = PendingChanges()
    deletion.delete_session(1)
    stored = write_and_load(database, changes, deletion)
    assert set(stored.sessions) == {2}
    assert stored.subscriptions == [(2, "a", 1)]
    assert [key for *key, _ in stored.messages] == [[2, 1]]
    assert stored.unreleased_ids == [(2, 1)]
    assert set(stored.retained) == {"a"}


def test_deleting_a_session_discards_its_pending_rows(database: Database) -> None:
    changes = session(1)
    changes.subscriptions[1, "a"] = 1
    changes.messages[1, 1] = message()
    changes.unreleased_ids[1, 1] = True
    changes.delete_session(1)
    assert len(changes.subscriptions) == len(changes.messages) == len(changes.unreleased_ids) == 0
    Model().check(write_and_load(database, changes))


def test_a_session_id_that_is_used_again_has_no_old_rows(database: Database) -> None:
    first = session()
    first.subscriptions[1, "a"] = 1
    first.messages[1, 1] = message()
    deletion = PendingChanges()
    deletion.delete_session(1)
    stored = write_and_load(database, first, deletion, session())
    assert set(stored.sessions) == {1}
    assert len(stored.subscriptions) == len(stored.messages) == 0


def test_deleting_missing_rows_does_nothing(database: Database) -> None:
    changes = PendingChanges()
    changes.delete_session(9)
    changes.subscriptions[9, "a"] = changes.messages[9, 1] = changes.retained["a"] = None
    changes.unreleased_ids[9, 1] = False
    Model().check(write_and_load(database, changes, changes))


def test_a_failed_write_changes_nothing(database: Database) -> None:
    changes = session()
    changes.messages[2, 1] = message()  # of a session that does not exist
    with pytest.raises(IntegrityError):
        write_and_load(database, changes)
    Model().check(database.read_now(load_stored_state))


def test_errors_do_not_contain_payloads(database: Database) -> None:
    changes = session()
    changes.messages[2, 1] = message(b"a-secret")
    with pytest.raises(IntegrityError) as caught:
        write_and_load(database, changes)
    assert "a-secret" not in str(caught.value)
    assert b"a-secret".hex() not in str(caught.value)


def test_only_the_last_owner_of_the_tables_may_write(database: Database) -> None:
    first = database.write_now(take_ownership)
    database.write_now(check_ownership, first)
    second = database.write_now(take_ownership)
    database.write_now(check_ownership, second)
    with pytest.raises(UnusableDatabase, match="another Meshfleet process has taken over"):
        database.write_now(check_ownership, first)

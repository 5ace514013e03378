"""Property tests: every valid report is accepted, and no other message stops a batch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from meshfleet.mqtt.codec.packets import OversizedPublish, Publish
from meshfleet.protocol import reports
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import IdentifierName
from meshfleet.protocol.topics import AnyIdentifier, ReportTopic
from tests.examples import examples
from tests.protocol import strategies
from tests.service.ingest.ingest_harness import DAY, MINUTE, NOON, IngestHarness
from tests.service.ingest.messages import format_time

pytestmark = pytest.mark.anyio

shared = settings(
    max_examples=examples(15),
)

START = datetime.fromtimestamp(NOON / 1000, UTC)

known_names: st.SearchStrategy[AnyIdentifier] = st.sampled_from(sorted(BUILTIN_CATALOGUE.names)).map(
    IdentifierName
)
known_identifiers: st.SearchStrategy[AnyIdentifier] = st.sampled_from(
    sorted(entry.id for entry in BUILTIN_CATALOGUE)
)


@st.composite
def encoded_reports(draw: st.DrawFn) -> Publish:
    """Draw an encoded report, of identifiers in the catalogue or not."""
    topic, report = draw(strategies.any_reports())
    if topic.kind.has_identifier and draw(st.booleans()):
        identifier = draw(known_names if topic.kind.is_decoded else known_identifiers)
        topic = ReportTopic(topic.gateway, topic.device, topic.kind, identifier)
    if draw(st.booleans()):  # otherwise nearly all times are implausible
        report = replace(report, time=START + timedelta(milliseconds=draw(st.integers(-DAY, MINUTE))))
    return Publish(str(topic), reports.encode_report(topic.kind, report), qos=1)


@given(st.lists(encoded_reports(), max_size=12))
@shared
async def test_every_valid_report_is_accepted(harness: IngestHarness, messages: list[Publish]) -> None:
    counters = harness.ingest.counters
    reports_before = counters.reports.total()
    await harness.commit_flushed(*messages)
    assert harness.rejects() == []
    assert counters.rejects == {}
    assert counters.reports.total() == reports_before + len(messages)


_devices = count(1)


@given(encoded_reports())
@settings(shared, max_examples=examples(60))
async def test_a_sample_has_the_time_and_the_gateway_of_its_report(
    sqlite_harness: IngestHarness, message: Publish
) -> None:
    # Each run has its own device: they share a database.
    device = f"{next(_devices):012x}"
    level, gateway, direction, _, kind, *identifier_levels = message.topic.split("/", 1)[1].split("/", 5)
    topic = "/".join(("mt", level, gateway, direction, device, kind, *identifier_levels))
    await sqlite_harness.commit(Publish(topic, message.payload))
    samples = [(format_time(sample.time), sample.gateway) for sample in await sqlite_harness.samples(device)]
    time = message.payload[len('{"time":"') :][:24].decode()
    assert samples == ([(time, int(gateway, 16))] if Kind(kind).has_identifier else [])


# --- Arbitrary messages ---

topics = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=60),
    strategies.any_topics().map(str),
    st.builds(
        lambda topic, cut: str(topic)[: max(1, len(str(topic)) - cut)],
        strategies.report_topics(),
        st.integers(0, 40),
    ),
)
"""Topics that a broker accepts."""

json_texts = st.sampled_from(
    [
        b"",
        b"null",
        b"[]",
        b'{"time":null}',
        b'{"time":"2023-11-15T12:00:00Z","seq":1,"value":"\\ud800"}',
        b'{"time":"2023-11-15T12:00:00Z","seq":1,"value":"\\u0000","ext":{"\\u0000":1}}',
        b'{"time":"2023-11-15T12:00:00Z","seq":1,"value":1' + b"0" * 400 + b"}",
        b'{"time":"2023-11-15T12:00:00Z","seq":1,"value":' + b"[" * 2000 + b"]" * 2000 + b"}",
        b'{"time":"0001-01-01T00:00:00Z","seq":1,"value":"00","status":0,"error":1}',
        b'{"time":"9999-12-31T23:59:59.999Z","seq":1,"value":"","status":0,"error":1}',
        b'{"time":"0001-01-01T00:00:00+23:59","seq":1,"value":"00"}',
        b'{"\\u0000":1,"time":"2023-11-15T12:00:00Z","seq":1,"status":9007199254740993}',
    ]
)


@st.composite
def any_messages(draw: st.DrawFn) -> Publish:
    """Draw a message that may be a report."""
    message = draw(encoded_reports())
    topic = draw(st.one_of(st.just(message.topic), topics))
    payload = draw(
        st.one_of(
            st.just(message.payload), strategies.damaged(message.payload), st.binary(max_size=80), json_texts
        )
    )
    if draw(st.integers(0, 9)) == 0:
        return OversizedPublish(topic, b"", size=draw(st.integers(0, 2**40)))
    return Publish(topic, payload, qos=draw(st.integers(0, 1)))


def count_messages(harness: IngestHarness) -> int:
    counters = harness.ingest.counters
    return counters.reports.total() + counters.rejects.total()


@pytest.mark.rule("report-30", "report-31")
@given(st.lists(any_messages(), max_size=25))
@settings(shared, max_examples=examples(30))
async def test_every_message_is_a_report_or_a_reject(harness: IngestHarness, messages: list[Publish]) -> None:
    harness.now += MINUTE  # a new quota
    before, batches = count_messages(harness), harness.ingest.counters.batches
    await harness.commit_flushed(*messages)
    assert count_messages(harness) == before + len(messages)
    assert harness.ingest.counters.batches == batches + 1

"""Whatever comes: reports that the wire can write are taken, and nothing else ever stops a batch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
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
from tests.service.ingest.ingest_harness import DAY, MINUTE, NOON
from tests.service.ingest.messages import format_time

if TYPE_CHECKING:
    from tests.service.ingest.ingest_harness import IngestHarness

pytestmark = pytest.mark.anyio

shared = settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

BEGIN = datetime.fromtimestamp(NOON / 1000, UTC)

known_names: st.SearchStrategy[AnyIdentifier] = st.sampled_from(sorted(BUILTIN_CATALOGUE.names)).map(
    IdentifierName
)
known_identifiers: st.SearchStrategy[AnyIdentifier] = st.sampled_from(
    sorted(entry.id for entry in BUILTIN_CATALOGUE)
)


@st.composite
def written(draw: st.DrawFn) -> Publish:
    """A report as a gateway would write it, of what the catalogue knows or not."""
    topic, report = draw(strategies.any_reports())
    if topic.kind.has_identifier and draw(st.booleans()):
        known = draw(known_names if topic.kind.is_decoded else known_identifiers)
        topic = ReportTopic(topic.gateway, topic.device, topic.kind, known)
    if draw(st.booleans()):  # else nearly all times are unbelievable
        report = replace(report, time=BEGIN + timedelta(milliseconds=draw(st.integers(-DAY, MINUTE))))
    return Publish(str(topic), reports.encode_report(topic.kind, report), qos=1)


@given(st.lists(written(), max_size=12))
@shared
async def test_every_report_that_can_be_written_is_taken(
    intake: IngestHarness, messages: list[Publish]
) -> None:
    figures = intake.ingest.counters
    reports_before = figures.reports.total()
    await intake.commit_flushed(*messages)
    assert intake.rejects() == []
    assert figures.rejects == {}
    assert figures.reports.total() == reports_before + len(messages)


_devices = count(1)


@given(written())
@settings(shared, max_examples=examples(60))
async def test_a_sample_has_the_time_and_the_gateway_of_its_report(
    in_file: IngestHarness, message: Publish
) -> None:
    # A device of its own for each run: they share a database.
    device = f"{next(_devices):012x}"
    front, gateway, way, _, word, *rest = message.topic.split("/", 1)[1].split("/", 5)
    topic = "/".join(("mt", front, gateway, way, device, word, *rest))
    await in_file.commit(Publish(topic, message.payload))
    found = [(format_time(each.time), each.gateway) for each in await in_file.samples(device)]
    time = message.payload[len('{"time":"') :][:24].decode()
    assert found == ([(time, int(gateway, 16))] if Kind(word).has_identifier else [])


# --- Anything ---

topics = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=60),
    strategies.any_topics().map(str),
    st.builds(
        lambda topic, cut: str(topic)[: max(1, len(str(topic)) - cut)],
        strategies.report_topics(),
        st.integers(0, 40),
    ),
)
"""Every topic that a broker lets through."""

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
def anything(draw: st.DrawFn) -> Publish:
    """A message that may be a report."""
    message = draw(written())
    topic = draw(st.one_of(st.just(message.topic), topics))
    payload = draw(
        st.one_of(
            st.just(message.payload), strategies.damaged(message.payload), st.binary(max_size=80), json_texts
        )
    )
    if draw(st.integers(0, 9)) == 0:
        return OversizedPublish(topic, b"", size=draw(st.integers(0, 2**40)))
    return Publish(topic, payload, qos=draw(st.integers(0, 1)))


def counted(intake: IngestHarness) -> int:
    figures = intake.ingest.counters
    return figures.reports.total() + figures.rejects.total()


@pytest.mark.rule("report-30", "report-31")
@given(st.lists(anything(), max_size=25))
@settings(shared, max_examples=examples(30))
async def test_whatever_comes_each_message_is_a_report_or_a_reject(
    intake: IngestHarness, messages: list[Publish]
) -> None:
    intake.now += MINUTE  # a new quota
    before, batches = counted(intake), intake.ingest.counters.batches
    await intake.commit_flushed(*messages)
    assert counted(intake) == before + len(messages)
    assert intake.ingest.counters.batches == batches + 1

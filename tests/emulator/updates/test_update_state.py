"""The values in which gateways and devices tell how far an update is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.updates.update_state import Error, ImageKey, State, UpdateStateValue
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Identifier, Version, format_model_number
from tests.row_tables import each_row

WORDS = ("idle", "fetching", "transferring", "verifying", "staged", "applying", "done", "failed")

BYTE = st.integers(0, 255)
names = st.builds(
    ImageKey, st.integers(0, 0xFFFF).map(format_model_number), st.builds(Version, BYTE, BYTE, BYTE, BYTE)
)


@given(names)
def test_the_name_of_an_image_survives_its_six_bytes(name: ImageKey) -> None:
    raw = name.to_bytes()
    assert len(raw) == 6
    assert ImageKey.from_bytes(raw) == name
    assert ImageKey.from_bytes(b"......" + raw, 6) == name


@given(names, st.sampled_from(State), st.integers(0, 100), st.sampled_from(Error))
def test_progress_reads_in_the_catalogue_as_it_was_written(
    name: ImageKey, state: State, percent: int, error: Error
) -> None:
    raw = UpdateStateValue(name, state, percent, error).to_bytes()
    assert BUILTIN_CATALOGUE.decode(Identifier("8120"), raw).value == {
        "state": WORDS[state],
        "percent": percent,
        "error": error,
        "modelNumber": int(name.model, 16),
        "version": str(name.version),
    }


def test_progress_is_written_byte_by_byte_as_the_layout_says() -> None:
    progress = UpdateStateValue(ImageKey(format_model_number(0x18), Version(3, 1, 0, 7)))
    assert progress.to_bytes().hex(" ") == "01 00 00 00 18 03 01 00 07"
    progress.state, progress.percent, progress.error = State.FAILED, 42, Error.TRANSFER_LOST
    assert progress.to_bytes().hex(" ") == "07 2a 07 00 18 03 01 00 07"


@each_row("state", State)
def test_only_done_and_failed_are_ends(state: State) -> None:
    progress = UpdateStateValue(ImageKey(format_model_number(1), Version(1, 0, 0)), state)
    assert progress.is_done == (WORDS[state] in {"done", "failed"})

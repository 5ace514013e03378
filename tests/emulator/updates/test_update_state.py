"""Encoding of the state of updates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.updates.update_state import Error, ImageKey, State, UpdateStateValue
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Identifier, Version, format_model_number
from tests.row_tables import each_row

STATE_NAMES = ("idle", "fetching", "transferring", "verifying", "staged", "applying", "done", "failed")

BYTE = st.integers(0, 255)
image_keys = st.builds(
    ImageKey, st.integers(0, 0xFFFF).map(format_model_number), st.builds(Version, BYTE, BYTE, BYTE, BYTE)
)


@given(image_keys)
def test_an_image_key_is_encoded_in_six_bytes_and_decoded(image_key: ImageKey) -> None:
    raw = image_key.to_bytes()
    assert len(raw) == 6
    assert ImageKey.from_bytes(raw) == image_key
    assert ImageKey.from_bytes(b"......" + raw, 6) == image_key


@given(image_keys, st.sampled_from(State), st.integers(0, 100), st.sampled_from(Error))
def test_the_catalogue_decodes_an_encoded_update_state(
    image_key: ImageKey, state: State, percent: int, error: Error
) -> None:
    raw = UpdateStateValue(image_key, state, percent, error).to_bytes()
    assert BUILTIN_CATALOGUE.decode(Identifier("8120"), raw).value == {
        "state": STATE_NAMES[state],
        "percent": percent,
        "error": error,
        "modelNumber": int(image_key.model, 16),
        "version": str(image_key.version),
    }


def test_an_update_state_is_encoded_as_the_layout_defines() -> None:
    progress = UpdateStateValue(ImageKey(format_model_number(0x18), Version(3, 1, 0, 7)))
    assert progress.to_bytes().hex(" ") == "01 00 00 00 18 03 01 00 07"
    progress.state, progress.percent, progress.error = State.FAILED, 42, Error.TRANSFER_LOST
    assert progress.to_bytes().hex(" ") == "07 2a 07 00 18 03 01 00 07"


@each_row("state", State)
def test_only_done_and_failed_are_final(state: State) -> None:
    progress = UpdateStateValue(ImageKey(format_model_number(1), Version(1, 0, 0)), state)
    assert progress.is_done == (STATE_NAMES[state] in {"done", "failed"})

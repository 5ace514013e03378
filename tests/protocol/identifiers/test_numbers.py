"""Numbers of identifiers can be converted back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.protocol.identifiers.numbers import identifier_from_int, identifier_to_int
from meshfleet.protocol.ids import Identifier
from tests.protocol.strategies import identifiers

# Few different bytes, so that pairs often differ only in leading zeros.
similar_identifiers = st.lists(st.sampled_from([0, 0, 0x05, 0x80, 0xEF]), min_size=1, max_size=4).map(
    lambda raw: Identifier(bytes(raw).hex())
)


@pytest.mark.rule("id-32")
@given(identifiers | similar_identifiers)
def test_a_number_is_converted_back_to_its_identifier(identifier: Identifier) -> None:
    number = identifier_to_int(identifier)
    assert identifier_from_int(number) == identifier
    assert 0 <= number < 2**63


@pytest.mark.rule("id-32")
@given(similar_identifiers, similar_identifiers)
def test_different_identifiers_have_different_numbers(one: Identifier, other: Identifier) -> None:
    assert (identifier_to_int(one) == identifier_to_int(other)) == (one == other)


@pytest.mark.rule("id-32")
def test_identifiers_without_leading_zeros_are_their_own_number() -> None:
    numbers = [0x00, 0x05, 0x80, 0xFF, 0x8000, 0xEE8001, 0xFFFFFFFF]
    texts = ["00", "05", "80", "ff", "8000", "ee8001", "ffffffff"]
    assert [identifier_to_int(Identifier(text)) for text in texts] == numbers

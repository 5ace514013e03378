"""`GET /api/v1/catalogue`: identifiers and products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import ModelNumber
from meshfleet.protocol.products import find_product_name
from tests.service.telemetry.sample_data import get_json, list_faults

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

PATH = "/api/v1/catalogue"


def load_identifiers(service: RunningService) -> dict[str, dict[str, Any]]:
    return {each["identifier"]: each for each in get_json(service, PATH)["identifiers"]}


@pytest.mark.rule("rest-205")
def test_every_identifier_is_listed_once_in_the_order_of_its_number(service: RunningService) -> None:
    response = service.viewer.get(PATH)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    assert list(response.json()) == ["identifiers", "products"]
    listed = [each["identifier"] for each in response.json()["identifiers"]]
    assert listed == sorted(entry.id for entry in BUILTIN_CATALOGUE)


@pytest.mark.rule("rest-205")
def test_an_identifier_has_type_unit_access_and_note(service: RunningService) -> None:
    known = load_identifiers(service)
    assert known["8800"] == {
        "identifier": "8800",
        "name": "temperature",
        "kinds": ["measurement"],
        "type": "s16/100",
        "unit": "°C",
        "access": "r",
        "note": None,
    }
    assert known["8110"]["access"] == "rw"
    assert known["8110"]["unit"] is None
    assert known["8102"]["note"].startswith("0 power-on")


@pytest.mark.rule("rest-205")
def test_identifiers_that_requests_cannot_use_have_no_access(service: RunningService) -> None:
    listed = {name: each["access"] for name, each in load_identifiers(service).items()}
    assert {name for name, access in listed.items() if access is None} == {
        entry.id for entry in BUILTIN_CATALOGUE if entry.access == "-"
    }
    assert None in listed.values()
    assert set(listed.values()) <= {"r", "w", "rw", None}


@pytest.mark.rule("rest-205")
def test_products_are_listed_by_model_number_and_variant(
    service: RunningService,
) -> None:
    products = get_json(service, PATH)["products"]
    assert {"modelNumber": "2011", "variant": None, "name": "MT MeshConnect 2011"} in products
    assert [each for each in products if each["modelNumber"] == "0011"] == [
        {"modelNumber": "0011", "variant": 1, "name": "BlueUp SafeX BLE"},
        {"modelNumber": "0011", "variant": 4, "name": "KKM B1"},
    ]
    for each in products:
        assert find_product_name(ModelNumber(each["modelNumber"]), each["variant"] or 0) == each["name"]


def test_the_catalogue_needs_a_viewer_and_accepts_no_parameters(service: RunningService) -> None:
    for client in (service.viewer, service.operator, service.admin):
        assert client.get(PATH).status_code == 200
        assert client.post(PATH, json={}).status_code == 405
    assert service.anonymous.get(PATH).status_code == 401
    assert list_faults(service.viewer.get(PATH, params={"MaxResults": "1"})) == ["MaxResults"]

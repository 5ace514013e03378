"""Who gets in at the embedded broker, and who does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable, TooManyAttempts
from meshfleet.mqtt.broker import Account, AccountKind, NotAdmitted
from meshfleet.mqtt.codec.packets import Connect, ConnectReturnCode
from meshfleet.rest import Login, Role
from meshfleet.service.accounts import api_key_store
from meshfleet.service.embedded_broker.authentication import AccountAuthenticator
from meshfleet.service.embedded_broker.denied_access import DeniedAccessLog
from tests.service.embedded_broker.mqtt_accounts import PASSWORD, Credentials, database_outage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.embedded_broker.mqtt_accounts import MqttAccounts

pytestmark = pytest.mark.anyio

HERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"
MAC = "02005eab0001"


@pytest.fixture
def door(house: MqttAccounts) -> AccountAuthenticator:
    return AccountAuthenticator(
        house.database,
        logins=house.logins,
        denied_access=DeniedAccessLog(house.clock),
        metrics=house.metrics,
        now=house.clock,
        steady=house.clock.steady,
    )


async def admit(door: AccountAuthenticator, who: Credentials, at: str = HERE) -> Account:
    return await door.authenticate(Connect("any", user=who.user, password=who.password.encode()), at)


async def told(door: AccountAuthenticator, who: Credentials, at: str = HERE) -> ConnectReturnCode:
    """The return code that somebody gets."""
    try:
        await admit(door, who, at)
    except NotAdmitted as refusal:
        return refusal.return_code
    return ConnectReturnCode.ACCEPTED


def wrong(who: Credentials) -> Credentials:
    return who._replace(password=f"{who.password}x")


EVERYBODY: dict[str, Callable[[MqttAccounts], Credentials]] = {
    "gateway": lambda house: house.gateway(),
    "person": lambda house: house.person(),
    "program": lambda house: house.program(),
}
everybody = pytest.mark.parametrize("make", EVERYBODY.values(), ids=EVERYBODY)


# --- Gateways ---


@pytest.mark.rule("broker-4")
async def test_a_claimed_gateway_gets_in_with_its_mac_in_any_case(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    claimed = house.claim(MAC)
    for spelt in (MAC, MAC.upper(), MAC.title()):
        account = await admit(door, claimed._replace(user=spelt))
        assert (account.kind, account.name, account.role) == (AccountKind.GATEWAY, MAC, None)


@pytest.mark.rule("broker-4", "broker-15")
async def test_a_gateway_gets_in_with_no_other_password(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    mine, other = house.gateway(), house.gateway()
    stored = api_key_store.hash_credential(mine.password)
    others = ["", other.password, mine.password[:-1], mine.password.swapcase(), stored.hex(), f" {PASSWORD}"]
    for number, password in enumerate(others):
        assert await told(door, mine._replace(password=password), f"192.0.2.{number}") == 4, password
    assert await told(door, mine) == ConnectReturnCode.ACCEPTED


@pytest.mark.rule("broker-4", "broker-15")
async def test_only_the_password_of_the_present_claim_holds(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    assert await told(door, Credentials(MAC, PASSWORD)) == ConnectReturnCode.BAD_CREDENTIALS, "never claimed"
    first = house.claim(MAC)
    second = house.rotate(first)
    assert [await told(door, each) for each in (first, second)] == [4, 0]
    house.release(second)
    assert [await told(door, each) for each in (first, second)] == [4, 4]
    third = house.claim(MAC)
    assert [await told(door, each) for each in (second, third)] == [4, 0]


# --- People ---


@pytest.mark.rule("broker-10")
async def test_a_person_gets_in_as_on_rest(house: MqttAccounts, door: AccountAuthenticator) -> None:
    people = [(house.person(role), role) for role in Role]
    for person, role in people:
        name = person.user.upper()  # which REST reads in any case too
        account = await admit(door, person._replace(user=name))
        assert (account.kind, account.name, account.role) == (AccountKind.USER, person.user, role)
        told_on_rest = await house.logins.log_in(Login(username=name, password=person.password), HERE)
        assert told_on_rest.status == "SUCCESS"


@pytest.mark.rule("broker-10", "broker-15")
async def test_what_a_person_may_do_is_what_holds_now(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    person = house.person(Role.ADMIN)
    house.person(Role.ADMIN)
    before = await admit(door, person)
    house.change_role(person, Role.VIEWER)
    after = await admit(door, person)
    assert (before.role, after.role) == (Role.ADMIN, Role.VIEWER)
    changed = house.change_password(person)
    assert [await told(door, each) for each in (person, changed)] == [4, 0]
    house.remove(changed)
    assert await told(door, changed) == ConnectReturnCode.BAD_CREDENTIALS


# --- Programs ---


@pytest.mark.rule("broker-11")
async def test_a_program_gets_in_with_its_key(house: MqttAccounts, door: AccountAuthenticator) -> None:
    for number, role in enumerate(Role, 1):
        account = await admit(door, house.program(role))
        assert (account.kind, account.name, account.role) == (AccountKind.API_KEY, f"key {number}", role)


@pytest.mark.rule("broker-11", "broker-15")
async def test_a_key_that_was_revoked_or_has_expired_holds_no_longer(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    revoked, brief = house.program(), house.program(seconds=100)
    assert [await told(door, each) for each in (revoked, brief)] == [0, 0]
    house.revoke(revoked)
    house.clock.move(seconds=99)
    assert [await told(door, each) for each in (revoked, brief)] == [4, 0]
    house.clock.move(seconds=1)
    assert await told(door, brief) == ConnectReturnCode.BAD_CREDENTIALS


# --- Everybody else ---


@pytest.mark.rule("broker-15")
async def test_nobody_gets_in_without_a_name_and_a_password(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    house.claim(MAC)
    for user, password in [(None, None), (None, b"x"), ("admin", None), (MAC, None), ("apikey", None)]:
        with pytest.raises(NotAdmitted) as refused:
            await door.authenticate(Connect("any", user=user, password=password), HERE)
        assert refused.value.return_code == ConnectReturnCode.NOT_AUTHORIZED


@everybody
@pytest.mark.rule("broker-15")
async def test_bytes_that_are_no_text_are_no_password(
    house: MqttAccounts, door: AccountAuthenticator, make: Callable[[MqttAccounts], Credentials]
) -> None:
    user, password = make(house)
    for end in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00"):
        with pytest.raises(NotAdmitted) as refused:
            await door.authenticate(Connect("any", user=user, password=password.encode() + end), HERE)
        assert refused.value.return_code == ConnectReturnCode.BAD_CREDENTIALS


@pytest.mark.rule("broker-15")
async def test_credentials_hold_for_nobody_else(house: MqttAccounts, door: AccountAuthenticator) -> None:
    three = [make(house) for make in EVERYBODY.values()]
    for number, (mine, other) in enumerate((mine, other) for mine in three for other in three):
        expected = ConnectReturnCode.ACCEPTED if mine == other else ConnectReturnCode.BAD_CREDENTIALS
        came = mine._replace(password=other.password)
        assert await told(door, came, f"192.0.2.{number}") == expected


NOBODY = [
    "",
    " ",
    "APIKEY",
    "apikey ",
    "nobody",
    "?",
    "a' OR 'a'='a",
    "x" * 65_535,
    "\N{KELVIN SIGN}",
    f"bmac-{MAC}",
    f"{MAC} ",
    f"{MAC}0",
    "02:00:5e:ab:00:01",
    "ffffffffffff",
]


@pytest.mark.rule("broker-15")
async def test_a_name_that_nobody_has_is_refused(house: MqttAccounts, door: AccountAuthenticator) -> None:
    passwords = [house.claim(MAC).password, house.program().password]
    for number, user in enumerate(NOBODY):
        for password in passwords:
            assert await told(door, Credentials(user, password), f"192.0.2.{number}") == 4, user


# --- What the broker is told of them ---


@everybody
async def test_the_same_credentials_prove_the_same_and_are_not_shown(
    house: MqttAccounts, door: AccountAuthenticator, make: Callable[[MqttAccounts], Credentials]
) -> None:
    who = make(house)
    account = await admit(door, who)
    assert account == await admit(door, who, ELSEWHERE)
    assert account.credential_digest not in {
        api_key_store.hash_credential(who.password),
        who.password.encode(),
    }
    assert who.password not in repr(account)


async def test_other_credentials_prove_something_else(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    gateway, person = house.gateway(), house.person()
    before = [await admit(door, each) for each in (gateway, person)]
    after = [await admit(door, each) for each in (house.rotate(gateway), house.change_password(person))]
    assert [each.name for each in before] == [each.name for each in after]
    assert not {each.credential_digest for each in before} & {each.credential_digest for each in after}


# --- Guessing ---


@everybody
@pytest.mark.rule("broker-18")
async def test_who_fails_again_and_again_waits_longer_and_longer(
    house: MqttAccounts, door: AccountAuthenticator, make: Callable[[MqttAccounts], Credentials]
) -> None:
    who = wrong(make(house))
    seen = [await told(door, who) for _ in range(6)]
    for seconds in (1, 2):
        house.clock.set(seconds=-86_400)  # which changes nothing
        house.clock.move(seconds=seconds)
        seen += [await told(door, who), await told(door, who)]
    assert seen == [4, 4, 4, 4, 4, 3, 4, 3, 4, 3]
    text = house.metrics.render(0, 0).decode()
    assert 'meshfleet_logins_total{outcome="failed"} 7.0' in text
    assert 'meshfleet_logins_total{outcome="throttled"} 3.0' in text


@pytest.mark.rule("broker-18")
@pytest.mark.parametrize("make", [EVERYBODY["gateway"], EVERYBODY["person"]], ids=["gateway", "person"])
async def test_a_name_waits_where_it_failed_even_with_the_right_password_and_nowhere_else(
    house: MqttAccounts, door: AccountAuthenticator, make: Callable[[MqttAccounts], Credentials]
) -> None:
    who = make(house)
    for _ in range(5):
        await told(door, wrong(who))
    assert [await told(door, who), await told(door, who, ELSEWHERE)] == [3, 0]
    assert await told(door, who._replace(user=who.user.upper())) == ConnectReturnCode.SERVER_UNAVAILABLE
    house.clock.move(seconds=1)
    assert await told(door, who) == ConnectReturnCode.ACCEPTED
    assert [await told(door, wrong(who)) for _ in range(5)] == [4] * 5, "its failures are forgotten"


@pytest.mark.rule("broker-18")
async def test_gateways_with_old_passwords_do_no_harm_to_others_at_their_address(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    stale = [house.gateway() for _ in range(20)]
    for gateway in stale:
        house.rotate(gateway)
        for _ in range(6):
            await told(door, gateway)
    others = [make(house) for make in EVERYBODY.values()]
    assert [await told(door, each) for each in others] == [0, 0, 0]
    assert [await told(door, wrong(each)) for each in others] == [4, 4, 4], "who mistypes once need not wait"
    told_on_rest = await house.logins.log_in(Login(username=others[1].user, password=PASSWORD), HERE)
    assert told_on_rest.status == "SUCCESS"


@pytest.mark.rule("broker-18")
async def test_unknown_gateways_of_one_address_are_told_to_wait(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    mine = house.gateway()
    guesses = [Credentials(f"02005ecc{number:04x}", "guess") for number in range(30)]
    assert [await told(door, guess) for guess in guesses] == [4] * 5 + [3] * 25
    assert await told(door, mine) == ConnectReturnCode.ACCEPTED, "who knows a password is not shut out"
    assert await told(door, wrong(mine)) == ConnectReturnCode.SERVER_UNAVAILABLE, (
        "or one could tell which gateways exist"
    )
    assert await told(door, guesses[0], ELSEWHERE) == ConnectReturnCode.BAD_CREDENTIALS
    house.clock.set(seconds=-86_400)  # which changes nothing
    house.clock.move(seconds=301)
    assert await told(door, Credentials("02005edd0000", "guess")) == ConnectReturnCode.BAD_CREDENTIALS


@pytest.mark.rule("broker-18")
async def test_revoked_keys_slow_down_no_other_key(house: MqttAccounts, door: AccountAuthenticator) -> None:
    old, new = house.program(), house.program()
    house.revoke(old)
    assert [await told(door, old) for _ in range(6)] == [4, 4, 4, 4, 4, 3]
    assert [await told(door, new) for _ in range(3)] == [0, 0, 0]


@pytest.mark.rule("broker-18", "auth-13")
async def test_failures_of_a_person_count_on_mqtt_and_rest_together(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    person = house.person()
    for _ in range(5):
        assert await told(door, wrong(person)) == ConnectReturnCode.BAD_CREDENTIALS
    with pytest.raises(TooManyAttempts):
        await house.logins.log_in(Login(username=person.user, password=person.password), HERE)


@pytest.mark.rule("broker-18")
@pytest.mark.parametrize("make", [EVERYBODY["gateway"], EVERYBODY["program"]], ids=["gateway", "program"])
async def test_many_guesses_at_once_are_as_many_guesses(
    house: MqttAccounts, door: AccountAuthenticator, make: Callable[[MqttAccounts], Credentials]
) -> None:
    who = wrong(make(house))
    seen = await asyncio.gather(*(told(door, who) for _ in range(20)))
    assert sorted(seen) == [3] * 15 + [4] * 5


@everybody
@pytest.mark.rule("broker-18")
async def test_many_who_belong_get_in_at_once(
    house: MqttAccounts, door: AccountAuthenticator, make: Callable[[MqttAccounts], Credentials]
) -> None:
    """After a restart all connections of an account come back in one moment."""
    who = make(house)
    assert await asyncio.gather(*(told(door, who) for _ in range(10))) == [0] * 10


NEIGHBOURS = [
    (
        "2001:db8::1",
        "2001:db8::2",
        ConnectReturnCode.SERVER_UNAVAILABLE,
    ),  # one machine has a whole network of them
    ("2001:db8::1", "2001:db8:0:1::1", ConnectReturnCode.ACCEPTED),
    ("::ffff:192.0.2.1", "::ffff:192.0.2.2", ConnectReturnCode.ACCEPTED),  # IPv4, where one listens for both
    ("::ffff:192.0.2.1", "192.0.2.1", ConnectReturnCode.SERVER_UNAVAILABLE),
]


@pytest.mark.rule("broker-18")
@pytest.mark.parametrize("make", [EVERYBODY["gateway"], EVERYBODY["person"]], ids=["gateway", "person"])
async def test_addresses_are_told_apart_as_their_owners_are(
    house: MqttAccounts, door: AccountAuthenticator, make: Callable[[MqttAccounts], Credentials]
) -> None:
    for here, there, expected in NEIGHBOURS:
        who = make(house)
        for _ in range(5):
            await told(door, wrong(who), here)
        assert await told(door, who, there) == expected, (here, there)


async def test_a_login_that_the_database_did_not_answer_is_no_failure(
    house: MqttAccounts, door: AccountAuthenticator
) -> None:
    gateway = house.gateway()
    with database_outage(house.database):
        for _ in range(6):
            with pytest.raises(DatabaseUnavailable):
                await told(door, wrong(gateway))
    assert await told(door, gateway) == ConnectReturnCode.ACCEPTED

"""Authentication of MQTT clients at the embedded broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors import DatabaseUnavailable, TooManyAttempts
from meshfleet.mqtt.broker import Account, AccountKind, NotAdmitted
from meshfleet.mqtt.codec.packets import Connect, ConnectReturnCode
from meshfleet.rest.accounts import Login, Role
from meshfleet.service.accounts import api_key_store
from meshfleet.service.embedded_broker.authentication import AccountAuthenticator
from meshfleet.service.embedded_broker.denied_access import DeniedAccessLog
from tests.service.embedded_broker.mqtt_accounts import PASSWORD, Credentials, MqttAccounts, database_outage

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.anyio

ADDRESS, OTHER_ADDRESS = "192.0.2.1", "192.0.2.2"
MAC = "02005eab0001"


@pytest.fixture
def authenticator(accounts: MqttAccounts) -> AccountAuthenticator:
    return AccountAuthenticator(
        accounts.database,
        logins=accounts.logins,
        denied_access=DeniedAccessLog(accounts.clock),
        metrics=accounts.metrics,
        now=accounts.clock,
        monotonic=accounts.clock.monotonic,
    )


async def authenticate(
    authenticator: AccountAuthenticator, credentials: Credentials, at: str = ADDRESS
) -> Account:
    return await authenticator.authenticate(
        Connect("any", user=credentials.user, password=credentials.password.encode()), at
    )


async def get_return_code(
    authenticator: AccountAuthenticator, credentials: Credentials, at: str = ADDRESS
) -> ConnectReturnCode:
    """Return the return code that a client gets."""
    try:
        await authenticate(authenticator, credentials, at)
    except NotAdmitted as refusal:
        return refusal.return_code
    return ConnectReturnCode.ACCEPTED


def with_wrong_password(credentials: Credentials) -> Credentials:
    return credentials._replace(password=f"{credentials.password}x")


ACCOUNT_KINDS: dict[str, Callable[[MqttAccounts], Credentials]] = {
    "gateway": lambda accounts: accounts.gateway(),
    "person": lambda accounts: accounts.person(),
    "program": lambda accounts: accounts.program(),
}
each_kind = pytest.mark.parametrize("create", ACCOUNT_KINDS.values(), ids=ACCOUNT_KINDS)


# --- Gateways ---


@pytest.mark.rule("broker-4")
async def test_a_claimed_gateway_authenticates_with_its_mac_in_any_case(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    claimed = accounts.claim(MAC)
    for spelling in (MAC, MAC.upper(), MAC.title()):
        account = await authenticate(authenticator, claimed._replace(user=spelling))
        assert (account.kind, account.name, account.role) == (AccountKind.GATEWAY, MAC, None)


@pytest.mark.rule("broker-4", "broker-15")
async def test_a_gateway_is_refused_with_another_password(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    credentials, other = accounts.gateway(), accounts.gateway()
    stored = api_key_store.hash_credential(credentials.password)
    others = [
        "",
        other.password,
        credentials.password[:-1],
        credentials.password.swapcase(),
        stored.hex(),
        f" {PASSWORD}",
    ]
    for number, password in enumerate(others):
        assert (
            await get_return_code(authenticator, credentials._replace(password=password), f"192.0.2.{number}")
            == 4
        ), password
    assert await get_return_code(authenticator, credentials) == ConnectReturnCode.ACCEPTED


@pytest.mark.rule("broker-4", "broker-15")
async def test_only_the_password_of_the_current_claim_is_valid(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    assert (
        await get_return_code(authenticator, Credentials(MAC, PASSWORD)) == ConnectReturnCode.BAD_CREDENTIALS
    ), "never claimed"
    first = accounts.claim(MAC)
    second = accounts.rotate(first)
    assert [await get_return_code(authenticator, each) for each in (first, second)] == [4, 0]
    accounts.release(second)
    assert [await get_return_code(authenticator, each) for each in (first, second)] == [4, 4]
    third = accounts.claim(MAC)
    assert [await get_return_code(authenticator, each) for each in (second, third)] == [4, 0]


# --- Users ---


@pytest.mark.rule("broker-10")
async def test_a_user_authenticates_as_on_rest(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    people = [(accounts.person(role), role) for role in Role]
    for person, role in people:
        name = person.user.upper()  # REST accepts any case, too
        account = await authenticate(authenticator, person._replace(user=name))
        assert (account.kind, account.name, account.role) == (AccountKind.USER, person.user, role)
        rest_login = await accounts.logins.log_in(Login(username=name, password=person.password), ADDRESS)
        assert rest_login.status == "SUCCESS"


@pytest.mark.rule("broker-10", "broker-15")
async def test_a_user_has_the_current_role_and_password(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    person = accounts.person(Role.ADMIN)
    accounts.person(Role.ADMIN)
    before = await authenticate(authenticator, person)
    accounts.change_role(person, Role.VIEWER)
    after = await authenticate(authenticator, person)
    assert (before.role, after.role) == (Role.ADMIN, Role.VIEWER)
    changed = accounts.change_password(person)
    assert [await get_return_code(authenticator, each) for each in (person, changed)] == [4, 0]
    accounts.remove(changed)
    assert await get_return_code(authenticator, changed) == ConnectReturnCode.BAD_CREDENTIALS


# --- API keys ---


@pytest.mark.rule("broker-11")
async def test_a_program_authenticates_with_its_key(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    for number, role in enumerate(Role, 1):
        account = await authenticate(authenticator, accounts.program(role))
        assert (account.kind, account.name, account.role) == (AccountKind.API_KEY, f"key {number}", role)


@pytest.mark.rule("broker-11", "broker-15")
async def test_a_revoked_or_expired_key_is_refused(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    revoked, expiring = accounts.program(), accounts.program(seconds=100)
    assert [await get_return_code(authenticator, each) for each in (revoked, expiring)] == [0, 0]
    accounts.revoke(revoked)
    accounts.clock.move(seconds=99)
    assert [await get_return_code(authenticator, each) for each in (revoked, expiring)] == [4, 0]
    accounts.clock.move(seconds=1)
    assert await get_return_code(authenticator, expiring) == ConnectReturnCode.BAD_CREDENTIALS


# --- Invalid credentials ---


@pytest.mark.rule("broker-15")
async def test_a_client_without_name_or_password_is_refused(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    accounts.claim(MAC)
    for user, password in [(None, None), (None, b"x"), ("admin", None), (MAC, None), ("apikey", None)]:
        with pytest.raises(NotAdmitted) as caught:
            await authenticator.authenticate(Connect("any", user=user, password=password), ADDRESS)
        assert caught.value.return_code == ConnectReturnCode.NOT_AUTHORIZED


@each_kind
@pytest.mark.rule("broker-15")
async def test_a_password_that_is_not_utf_8_is_refused(
    accounts: MqttAccounts, authenticator: AccountAuthenticator, create: Callable[[MqttAccounts], Credentials]
) -> None:
    user, password = create(accounts)
    for suffix in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00"):
        with pytest.raises(NotAdmitted) as caught:
            await authenticator.authenticate(
                Connect("any", user=user, password=password.encode() + suffix), ADDRESS
            )
        assert caught.value.return_code == ConnectReturnCode.BAD_CREDENTIALS


@pytest.mark.rule("broker-15")
async def test_a_password_is_valid_only_for_its_own_account(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    all_credentials = [create(accounts) for create in ACCOUNT_KINDS.values()]
    for number, (credentials, other) in enumerate(
        (credentials, other) for credentials in all_credentials for other in all_credentials
    ):
        expected = ConnectReturnCode.ACCEPTED if credentials == other else ConnectReturnCode.BAD_CREDENTIALS
        mixed = credentials._replace(password=other.password)
        assert await get_return_code(authenticator, mixed, f"192.0.2.{number}") == expected


UNKNOWN_NAMES = [
    "",
    " ",
    "APIKEY",
    "apikey ",
    "unknown",
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
async def test_an_unknown_name_is_refused(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    passwords = [accounts.claim(MAC).password, accounts.program().password]
    for number, user in enumerate(UNKNOWN_NAMES):
        for password in passwords:
            assert (
                await get_return_code(authenticator, Credentials(user, password), f"192.0.2.{number}") == 4
            ), user


# --- Accounts as the broker sees them ---


@each_kind
async def test_equal_credentials_have_equal_digests_that_reveal_nothing(
    accounts: MqttAccounts, authenticator: AccountAuthenticator, create: Callable[[MqttAccounts], Credentials]
) -> None:
    credentials = create(accounts)
    account = await authenticate(authenticator, credentials)
    assert account == await authenticate(authenticator, credentials, OTHER_ADDRESS)
    assert account.credential_digest not in {
        api_key_store.hash_credential(credentials.password),
        credentials.password.encode(),
    }
    assert credentials.password not in repr(account)


async def test_different_credentials_have_different_digests(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    gateway, person = accounts.gateway(), accounts.person()
    before = [await authenticate(authenticator, each) for each in (gateway, person)]
    after = [
        await authenticate(authenticator, each)
        for each in (accounts.rotate(gateway), accounts.change_password(person))
    ]
    assert [each.name for each in before] == [each.name for each in after]
    assert not {each.credential_digest for each in before} & {each.credential_digest for each in after}


# --- Guessing ---


@each_kind
@pytest.mark.rule("broker-18")
async def test_repeated_failures_cause_growing_delays(
    accounts: MqttAccounts, authenticator: AccountAuthenticator, create: Callable[[MqttAccounts], Credentials]
) -> None:
    credentials = with_wrong_password(create(accounts))
    codes = [await get_return_code(authenticator, credentials) for _ in range(6)]
    for seconds in (1, 2):
        accounts.clock.set(seconds=-86_400)  # must have no effect
        accounts.clock.move(seconds=seconds)
        codes += [
            await get_return_code(authenticator, credentials),
            await get_return_code(authenticator, credentials),
        ]
    assert codes == [4, 4, 4, 4, 4, 3, 4, 3, 4, 3]
    text = accounts.metrics.render().decode()
    assert 'meshfleet_logins_total{outcome="failed"} 7.0' in text
    assert 'meshfleet_logins_total{outcome="throttled"} 3.0' in text


@pytest.mark.rule("broker-18")
@pytest.mark.parametrize(
    "create", [ACCOUNT_KINDS["gateway"], ACCOUNT_KINDS["person"]], ids=["gateway", "person"]
)
async def test_a_delay_applies_to_the_correct_password_only_at_the_same_address(
    accounts: MqttAccounts, authenticator: AccountAuthenticator, create: Callable[[MqttAccounts], Credentials]
) -> None:
    credentials = create(accounts)
    for _ in range(5):
        await get_return_code(authenticator, with_wrong_password(credentials))
    assert [
        await get_return_code(authenticator, credentials),
        await get_return_code(authenticator, credentials, OTHER_ADDRESS),
    ] == [3, 0]
    assert (
        await get_return_code(authenticator, credentials._replace(user=credentials.user.upper()))
        == ConnectReturnCode.SERVER_UNAVAILABLE
    )
    accounts.clock.move(seconds=1)
    assert await get_return_code(authenticator, credentials) == ConnectReturnCode.ACCEPTED
    assert [await get_return_code(authenticator, with_wrong_password(credentials)) for _ in range(5)] == [
        4
    ] * 5, "the success cleared its failures"


@pytest.mark.rule("broker-18")
async def test_gateways_with_old_passwords_do_not_delay_other_accounts(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    stale = [accounts.gateway() for _ in range(20)]
    for gateway in stale:
        accounts.rotate(gateway)
        for _ in range(6):
            await get_return_code(authenticator, gateway)
    others = [create(accounts) for create in ACCOUNT_KINDS.values()]
    assert [await get_return_code(authenticator, each) for each in others] == [0, 0, 0]
    assert [await get_return_code(authenticator, with_wrong_password(each)) for each in others] == [
        4,
        4,
        4,
    ], "a single failure causes no delay"
    rest_login = await accounts.logins.log_in(Login(username=others[1].user, password=PASSWORD), ADDRESS)
    assert rest_login.status == "SUCCESS"


@pytest.mark.rule("broker-18")
async def test_unclaimed_gateways_at_one_address_are_delayed(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    credentials = accounts.gateway()
    guesses = [Credentials(f"02005ecc{number:04x}", "guess") for number in range(30)]
    assert [await get_return_code(authenticator, guess) for guess in guesses] == [4] * 5 + [3] * 25
    assert await get_return_code(authenticator, credentials) == ConnectReturnCode.ACCEPTED, (
        "a correct password is accepted"
    )
    assert (
        await get_return_code(authenticator, with_wrong_password(credentials))
        == ConnectReturnCode.SERVER_UNAVAILABLE
    ), "otherwise delays would reveal which gateways are claimed"
    assert (
        await get_return_code(authenticator, guesses[0], OTHER_ADDRESS) == ConnectReturnCode.BAD_CREDENTIALS
    )
    accounts.clock.set(seconds=-86_400)  # must have no effect
    accounts.clock.move(seconds=301)
    assert (
        await get_return_code(authenticator, Credentials("02005edd0000", "guess"))
        == ConnectReturnCode.BAD_CREDENTIALS
    )


@pytest.mark.rule("broker-18")
async def test_a_revoked_key_does_not_delay_other_keys(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    old, new = accounts.program(), accounts.program()
    accounts.revoke(old)
    assert [await get_return_code(authenticator, old) for _ in range(6)] == [4, 4, 4, 4, 4, 3]
    assert [await get_return_code(authenticator, new) for _ in range(3)] == [0, 0, 0]


@pytest.mark.rule("broker-18", "auth-13")
async def test_failures_of_a_user_on_mqtt_and_rest_add_up(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    person = accounts.person()
    for _ in range(5):
        assert (
            await get_return_code(authenticator, with_wrong_password(person))
            == ConnectReturnCode.BAD_CREDENTIALS
        )
    with pytest.raises(TooManyAttempts):
        await accounts.logins.log_in(Login(username=person.user, password=person.password), ADDRESS)


@pytest.mark.rule("broker-18")
@pytest.mark.parametrize(
    "create", [ACCOUNT_KINDS["gateway"], ACCOUNT_KINDS["program"]], ids=["gateway", "program"]
)
async def test_concurrent_guesses_all_count(
    accounts: MqttAccounts, authenticator: AccountAuthenticator, create: Callable[[MqttAccounts], Credentials]
) -> None:
    credentials = with_wrong_password(create(accounts))
    codes = await asyncio.gather(*(get_return_code(authenticator, credentials) for _ in range(20)))
    assert sorted(codes) == [3] * 15 + [4] * 5


@each_kind
@pytest.mark.rule("broker-18")
async def test_concurrent_correct_logins_all_succeed(
    accounts: MqttAccounts, authenticator: AccountAuthenticator, create: Callable[[MqttAccounts], Credentials]
) -> None:
    """Simulate a restart, after which all connections of an account are opened again at once."""
    credentials = create(accounts)
    assert await asyncio.gather(*(get_return_code(authenticator, credentials) for _ in range(10))) == [0] * 10


ADDRESS_PAIRS = [
    (
        "2001:db8::1",
        "2001:db8::2",
        ConnectReturnCode.SERVER_UNAVAILABLE,
    ),  # same /64 network: one host
    ("2001:db8::1", "2001:db8:0:1::1", ConnectReturnCode.ACCEPTED),
    (
        "::ffff:192.0.2.1",
        "::ffff:192.0.2.2",
        ConnectReturnCode.ACCEPTED,
    ),  # IPv4 clients on a dual-stack socket
    ("::ffff:192.0.2.1", "192.0.2.1", ConnectReturnCode.SERVER_UNAVAILABLE),
]


@pytest.mark.rule("broker-18")
@pytest.mark.parametrize(
    "create", [ACCOUNT_KINDS["gateway"], ACCOUNT_KINDS["person"]], ids=["gateway", "person"]
)
async def test_failures_are_counted_per_network(
    accounts: MqttAccounts, authenticator: AccountAuthenticator, create: Callable[[MqttAccounts], Credentials]
) -> None:
    for first, second, expected in ADDRESS_PAIRS:
        credentials = create(accounts)
        for _ in range(5):
            await get_return_code(authenticator, with_wrong_password(credentials), first)
        assert await get_return_code(authenticator, credentials, second) == expected, (first, second)


async def test_a_login_during_a_database_outage_does_not_count_as_failure(
    accounts: MqttAccounts, authenticator: AccountAuthenticator
) -> None:
    gateway = accounts.gateway()
    with database_outage(accounts.database):
        for _ in range(6):
            with pytest.raises(DatabaseUnavailable):
                await get_return_code(authenticator, with_wrong_password(gateway))
    assert await get_return_code(authenticator, gateway) == ConnectReturnCode.ACCEPTED

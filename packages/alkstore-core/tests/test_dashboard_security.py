"""Attacks on the dashboard: each of them would get through if one check were missing."""

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx
import pytest
from dashboards import TOKEN, Shown, client_of, shown, watching
from hanging import HUNG

from alkstore.dashboard.guard import Hosts, is_loopback
from alkstore.dashboard.session import LASTING, MOST, Sessions
from alkstore.errors import InvalidArgument

PATHS = [
    "/",
    "/queue?name=q",
    "/job?name=q&id=1",
    "/streams",
    "/schedules",
    "/locks",
    "/confirm?name=q&action=redrive",
]


@pytest.fixture
async def local() -> AsyncIterator[Shown]:
    """As ``alkstore dashboard --write`` on one's own machine: without a token."""
    async with shown(write=True) as board:
        await board.dead("q", "no route")
        yield board


@pytest.fixture
async def remote() -> AsyncIterator[Shown]:
    async with shown(write=True, token=TOKEN) as board:
        await board.dead("q", "no route")
        yield board


async def purge(board: Shown, **changes: str) -> dict[str, str]:
    """Give the form that deletes all dead jobs."""
    return {"proof": await board.proof(), "action": "purge", "name": "q", "older_than": "0"} | changes


async def dead(board: Shown) -> int:
    return (await board.store.queue("q").stats()).dead


async def login(board: Shown, token: str = TOKEN) -> httpx.Response:
    return await board.post("/login", {"token": token})


# ---------------------------------------------------------------- a name that is made to point here


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.7", "[fe80::1]",
     "localhost@evil.example", "evil.example#localhost", "", "localhost, evil.example", "evil.example@localhost",
     "localhost/evil", "localhost#evil", "localhost?evil", "[::1", "localhost:x"],
)  # fmt: skip
async def test_a_name_that_was_made_to_point_here_gets_nothing(local: Shown, host: str) -> None:
    for path in PATHS:
        answer = await local.client.get(path, headers={"host": host})
        assert answer.status_code == 421, path
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8420", "127.0.0.1:8420", "[::1]:8420", "127.0.0.9", "localhost."]
)
async def test_this_machine_is_let_in_by_its_names(local: Shown, host: str) -> None:
    assert (await local.client.get("/", headers={"host": host})).status_code == 200


async def test_a_request_without_a_host_or_with_two_is_refused(local: Shown) -> None:
    async def ask(*hosts: str) -> int:
        request = local.client.build_request("GET", "/")
        request.headers = httpx.Headers([("host", host) for host in hosts])
        return (await local.client.send(request)).status_code

    assert await ask("localhost") == 200
    assert await ask("localhost", "evil.example") == 421
    assert await ask() == 421


async def test_with_a_token_any_address_will_do_and_names_that_were_given() -> None:
    async with shown(token=TOKEN, hosts=["ops.example.org", "[fd00::7]"]) as board:
        for host, status in (
            ("192.168.1.7:8420", 303),
            ("OPS.example.org", 303),
            ("[fd00::7]", 303),
            ("evil.example", 421),
            ("x.ops.example.org", 421),
        ):
            assert (await board.client.get("/", headers={"host": host})).status_code == status, host


def test_a_host_is_a_name_without_a_port() -> None:
    assert Hosts(["*"], any_address=False).has("anything.example")
    for wrong in ("a:80", "a/b", "", "a b@c"):
        with pytest.raises(InvalidArgument):
            Hosts([wrong], any_address=True)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("", False), ("localhost.example", False), ("10.0.0.1", False)],
)  # fmt: skip
def test_only_what_nobody_else_can_reach_is_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


# ---------------------------------------------------------------- a form of another site


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://localhost:3000"}, {}, {"origin": "localhost"},
     {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"referer": "http://localhost/"},
     {"origin": "http://localhost.evil.example"}, {"origin": "ftp://localhost"}],
)  # fmt: skip
async def test_a_form_of_another_site_changes_nothing_even_with_the_proof(
    local: Shown, headers: dict[str, str]
) -> None:
    answer = await local.post("/change", await purge(local), headers)

    assert answer.status_code == 403
    assert await dead(local) == 1


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://localhost"}, {"origin": "https://localhost"}, {"sec-fetch-site": "same-origin"}],
)
async def test_a_form_of_ours_does_what_it_says(local: Shown, headers: dict[str, str]) -> None:
    answer = await local.post("/change", await purge(local), headers)

    assert answer.status_code == 303
    assert await dead(local) == 0


async def test_a_form_without_the_proof_of_its_session_changes_nothing(local: Shown) -> None:
    async with client_of(local.made) as stranger:
        found = re.search(r'name="proof" value="(\w+)"', (await stranger.get(PATHS[-1])).text)
    assert found is not None

    for proof in ("", "ä", found[1]):
        assert (await local.post("/change", await purge(local, proof=proof))).status_code == 403
    assert await dead(local) == 1


async def test_nothing_is_changed_by_a_link(local: Shown) -> None:
    answer = await local.client.get("/change", params=await purge(local))

    assert answer.status_code == 405
    assert await dead(local) == 1


async def test_only_forms_of_ours_are_read(local: Shown) -> None:
    fields, own = await purge(local), {"origin": "http://localhost"}
    as_json = await local.client.post("/change", json=fields, headers=own)
    as_text = await local.client.post(
        "/change", content=b"action=purge", headers=own | {"content-type": "text/plain"}
    )
    too_long = await local.post("/change", fields | {"more": "x" * 70_000})
    too_many = await local.post("/change", fields | {"more": ["1"] * 1_001})

    assert [each.status_code for each in (as_json, as_text, too_long, too_many)] == [400] * 4
    assert await dead(local) == 1


# ---------------------------------------------------------------- who is not logged in


async def test_without_the_token_nothing_is_shown_and_nothing_changed(remote: Shown) -> None:
    for path in PATHS:
        answer = await remote.client.get(path)
        assert (answer.status_code, answer.headers["location"][:12]) == (303, "/login?next="), path
    live = await remote.client.get("/", headers={"accept": "text/event-stream"})
    fields = {"action": "purge", "name": "q", "older_than": "0", "proof": "x"}
    statuses = [(await remote.post(path, fields)).status_code for path in ("/change", "/logout", "/nope")]

    assert live.status_code == 401
    assert statuses == [401, 401, 401]
    assert await dead(remote) == 1


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ä\udcff"])
async def test_a_wrong_token_does_not_open(remote: Shown, token: str) -> None:
    form = {"origin": "http://localhost", "content-type": "application/x-www-form-urlencoded"}
    body = f"token={quote(token, errors='surrogateescape')}"
    answer = await remote.client.post("/login", content=body, headers=form)

    assert answer.status_code == 403
    assert "That is not the token." in answer.text
    assert "set-cookie" not in answer.headers
    assert (await remote.client.get("/")).status_code == 303


async def test_the_token_opens_and_its_cookie_is_for_this_site_alone(remote: Shown) -> None:
    answer = await login(remote)
    cookie = answer.headers["set-cookie"]

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert re.fullmatch(r"alkstore_[0-9a-f]{8}=[\w-]{32}; Path=/; HttpOnly; SameSite=Strict", cookie)
    assert (await remote.client.get("/")).status_code == 200
    assert TOKEN not in (await remote.page("/")) + cookie


async def test_a_cookie_of_ones_own_making_does_not_open(remote: Shown) -> None:
    name = (await login(remote)).headers["set-cookie"].split("=")[0]
    async with client_of(remote.made) as stranger:
        answer = await stranger.get("/", headers={"cookie": f"{name}=0123456789abcdef0123456789abcdef"})

    assert answer.status_code == 303


async def test_a_cookie_over_tls_is_never_sent_without_it() -> None:
    async with shown(token=TOKEN) as board, client_of(board.made, "https://localhost") as client:
        answer = await client.post("/login", data={"token": TOKEN}, headers={"origin": "https://localhost"})

    assert answer.headers["set-cookie"].endswith("; Secure")


async def test_a_logout_ends_the_session_for_whoever_has_its_cookie(remote: Shown) -> None:
    cookie = (await login(remote)).headers["set-cookie"].split(";")[0]
    without = await remote.post("/logout", {"proof": "x"})
    answer = await remote.post("/logout", {"proof": await remote.proof()})
    async with client_of(remote.made) as thief:
        stolen = await thief.get("/", headers={"cookie": cookie})

    assert without.status_code == 403
    assert answer.headers["location"] == "/login"
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert stolen.status_code == 303


async def test_who_logs_out_hears_nothing_more(remote: Shown) -> None:
    cookie = (await login(remote)).headers["set-cookie"].split(";")[0]
    async with watching(remote.made, "/", cookie) as viewer:
        await viewer.hear()
        await remote.post("/logout", {"proof": await remote.proof()})
        await remote.client.get("/login")
        async with asyncio.timeout(HUNG):
            await viewer.ended.wait()


@pytest.mark.parametrize(
    "wanted",
    [
        "//evil.example/",
        "https://evil.example/",
        "/\\evil.example",
        "/a\\b",
        "",
        "javascript:alert(1)",
        "/\n//x",
    ],
)
async def test_a_login_leads_to_no_other_site(remote: Shown, wanted: str) -> None:
    answer = await remote.post("/login", {"token": TOKEN, "next": wanted})

    assert answer.headers["location"] == "/"


def test_a_login_ends_by_itself_and_there_are_not_more_than_enough() -> None:
    now = [0.0]
    sessions = Sessions(TOKEN, lambda: now[0])
    first = sessions.login(TOKEN) or ""

    assert sessions.is_known(first)
    now[0] = LASTING - 1
    assert sessions.is_known(first)
    now[0] = LASTING
    assert not sessions.is_known(first)
    second = sessions.login(TOKEN) or ""
    for _ in range(MOST):
        sessions.login(TOKEN)
    assert not sessions.is_known(second)


def test_a_short_token_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidArgument, match="at least 16 characters") as caught:
        Sessions("hunter2", lambda: 0.0)

    assert "hunter2" not in str(caught.value)


# ---------------------------------------------------------------- what a browser may do with an answer


async def test_every_answer_says_what_a_browser_may_do_with_it(remote: Shown) -> None:
    answers = [
        await remote.client.get("/"),
        await remote.client.get("/login"),
        await remote.client.get("/", headers={"host": "evil.example"}),
        await remote.post("/login", {"token": "wrong"}),
        await login(remote),
        await remote.client.get("/nope"),
        await remote.client.get("/queue?name="),
    ]

    assert [answer.status_code for answer in answers] == [303, 200, 421, 403, 303, 404, 400]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers

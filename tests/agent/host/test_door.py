"""Who gets into the host from a browser: tickets, cookies, origins, and what every answer forbids."""

from pathlib import Path

import aiohttp
import pytest
from host_world import handshake, hosting

from fulgur.agent.host import door as rules
from fulgur.agent.host.serve import Listener
from fulgur.client.host import app_address
from fulgur.workspace import folders


def origin(listener: Listener) -> str:
    return f"http://127.0.0.1:{listener.port}"


async def post(listener: Listener, path: str, body: object, **headers: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        async with session.post(f"{origin(listener)}{path}", json=body, headers=headers) as answer:
            return answer.status, await answer.text(), answer.headers.get("Set-Cookie", "")


async def logged_in(listener: Listener) -> str:
    """The cookie of a new page, as a browser sends it."""
    ticket = listener.door.ticket("/work")
    status, _, cookie = await post(listener, "/login", {"ticket": ticket}, Origin=origin(listener))
    assert status == 200
    return cookie.partition(";")[0]


async def test_the_link_logs_a_page_in_once(home: Path) -> None:
    async with hosting() as listener:
        address = await app_address(folders.home(), Path("/somewhere/shop"))
        base, _, ticket = address.partition("/#")
        assert base == origin(listener)
        status, text, cookie = await post(listener, "/login", {"ticket": ticket}, Origin=base)
        assert (status, text) == (200, '{"workspace": "/somewhere/shop"}')
        assert cookie.startswith(f"fulgur_{listener.port}=")
        for word in ("HttpOnly", "SameSite=Strict", "Path=/"):
            assert word in cookie
        assert listener.token not in cookie and ticket not in cookie
        assert (await post(listener, "/login", {"ticket": ticket}, Origin=base))[0] == 403
        value = cookie.partition(";")[0]
        assert await handshake(listener, {"Cookie": value, "Origin": base}) == 101
        assert await handshake(listener, {"Cookie": value, "Origin": base.replace("127.0.0.1", "localhost")}) == 403


async def test_old_wrong_and_missing_tickets_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosting() as listener:
        own = origin(listener)
        monkeypatch.setattr(rules, "TICKET_SECONDS", -1.0)
        for ticket in (listener.door.ticket(""), "", "wrong", listener.token):
            assert (await post(listener, "/login", {"ticket": ticket}, Origin=own))[0] == 403
        assert (await post(listener, "/login", [1], Origin=own))[0] == 400
        assert (await post(listener, "/ticket", {}))[0] == 403
        assert (await post(listener, "/ticket", {}, Cookie=f"fulgur_{listener.port}=x"))[0] == 403


async def test_a_cookie_is_good_from_its_own_page_only(home: Path) -> None:
    async with hosting() as listener:
        cookie, own = await logged_in(listener), origin(listener)
        elsewhere = f"http://127.0.0.1:{listener.port + 1}"
        assert await handshake(listener, {"Cookie": cookie, "Origin": own}) == 101
        for wrong in ("http://evil.example", "null", elsewhere, own.replace("http:", "https:")):
            assert await handshake(listener, {"Cookie": cookie, "Origin": wrong}) == 403
            status, *_ = await post(listener, "/login", {"ticket": listener.door.ticket("")}, Origin=wrong)
            assert status == 403
        assert await handshake(listener, {"Cookie": cookie}) == 403  # not a page
        assert (
            await handshake(listener, {"Cookie": cookie, "Origin": own, "Host": f"evil.example:{listener.port}"}) == 403
        )
        assert await handshake(listener, {"Cookie": f"fulgur_{listener.port}=x", "Origin": own}) == 403
        assert await handshake(listener, {"Origin": own}) == 403
        assert (await post(listener, "/ticket", {}, Cookie=cookie, Origin=own))[0] == 403  # tickets are for programs


async def test_another_user_of_the_machine_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosting() as listener:
        cookie, own = await logged_in(listener), origin(listener)
        real = rules._owner
        owners = []
        monkeypatch.setattr(rules, "_owner", lambda *peer: owners.append(real(*peer)) or 12345)
        assert await handshake(listener, {"Cookie": cookie, "Origin": own}) == 403
        assert (await post(listener, "/login", {"ticket": listener.door.ticket("")}, Origin=own))[0] == 403
        assert owners and set(owners) == {rules.os.getuid()}  # Linux says who connects


async def test_every_answer_forbids_frames_inline_code_and_other_origins(home: Path) -> None:
    async with hosting() as listener, aiohttp.ClientSession() as session:
        for path, status in (
            ("/", 200),
            ("/app/index.html", 200),
            ("/app/nothing", 404),
            ("/app/..%2f", 404),
            ("/x", 404),
        ):
            async with session.get(origin(listener) + path) as answer:
                assert answer.status == status
                policy = answer.headers["Content-Security-Policy"].split("; ")
                assert {"default-src 'none'", "script-src 'self'", "img-src 'self'", "style-src 'self'"} <= set(policy)
                assert {"frame-ancestors 'none'", "require-trusted-types-for 'script'"} <= set(policy)
                assert "unsafe" not in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Frame-Options"] == "DENY"
                assert "Access-Control-Allow-Origin" not in answer.headers
        async with session.get(origin(listener) + "/", headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403
        async with session.get(origin(listener) + "/") as answer:
            page = await answer.text()
            assert "<style" not in page and "onload" not in page and "<script>" not in page

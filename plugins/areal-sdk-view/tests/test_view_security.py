"""A page of another origin, another host or another user learns nothing and changes nothing."""

import asyncio

import aiohttp
from view_runs import TOKEN

PLACE = {"run": "guess-1"}


async def status(address: str, path: str, method: str = "GET", **request: object) -> int:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
        session.request(method, f"{address}{path}", allow_redirects=False, **request) as response,  # type: ignore[arg-type]
    ):
        return response.status


async def test_nothing_is_served_without_the_token(address: str) -> None:
    for path in ("/", "/static/app.js", "/api/runs", "/api/stream", "/?token=wrong"):
        assert await status(address, path) == 403


async def test_the_token_leaves_the_address_for_a_cookie_that_scripts_cannot_read(
    address: str,
) -> None:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.get(f"{address}/?token={TOKEN}", allow_redirects=False) as response:
            assert response.status == 303
            assert response.headers["Location"] == "/"
            cookie = response.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Lax" in cookie
        async with session.get(f"{address}/api/runs") as response:
            assert response.status == 200


async def test_a_name_that_was_made_to_point_here_is_refused(address: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "attacker.example"}
    assert await status(address, "/api/runs", headers=headers) == 403


async def test_only_the_own_page_and_a_bearer_of_the_token_change_anything(address: str) -> None:
    cookie = {"Cookie": f"areal-view-{address.rpartition(':')[2]}={TOKEN}"}
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert await status(address, "/api/view", "POST", json=PLACE, headers=cookie) == 403
    for headers in (cookie, bearer):
        foreign = {**headers, "Origin": "http://127.0.0.1:1"}
        assert await status(address, "/api/view", "POST", json=PLACE, headers=foreign) == 403
    own = {**cookie, "Origin": address}
    assert await status(address, "/api/view", "POST", json=PLACE, headers=own) == 200
    assert await status(address, "/api/view", "POST", json=PLACE, headers=bearer) == 200


async def test_the_policy_admits_no_inline_script_and_no_other_host(
    client: aiohttp.ClientSession,
) -> None:
    for path in ("/", "/static/app.js", "/api/runs", "/nothing"):
        async with client.get(path) as response:
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_stream_has_the_headers_of_a_page(client: aiohttp.ClientSession) -> None:
    async with client.get("/api/stream?run=guess-1") as stream:
        assert "default-src 'none'" in stream.headers["Content-Security-Policy"]
        assert stream.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_token_that_is_no_text_is_refused(address: str) -> None:
    _, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(
        b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Authorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n"
    )
    await writer.drain()
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 403 ")


async def test_a_body_that_is_too_large_or_strange_is_refused(
    client: aiohttp.ClientSession,
) -> None:
    for body in (b"{", b"[]", b'{"run": 5}', b'{"path": "/etc"}'):
        async with client.post("/api/view", data=body) as response:
            assert response.status == 400
    async with client.post("/api/view", data=b" " * (1 << 17)) as response:
        assert response.status == 413

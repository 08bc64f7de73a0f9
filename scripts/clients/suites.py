"""Public suites against a real gateway: openai-python's, anthropic's, llm-comply and schemathesis.

    python scripts/clients/suites.py [--only openai anthropic llm-comply schemathesis | --write]

They come from the package index, each into an environment of its own that is kept in the cache. The
engine is scripted: what is tested is the wire. A failing test that not_applicable.toml does not explain
fails the script. `--write` puts the figures into docs/gateway.md.
"""

import argparse
import asyncio
import json
import re
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from aiohttp import web
from environments import environment, source
from served import run, served, write_table

from areal_sdk.gateway import Gateway
from areal_sdk.gateway.sessions.session import Session

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "gateway.md"
NOT_APPLICABLE = tomllib.loads((HERE / "not_applicable.toml").read_text())
TIMEOUT_S = 900
NUM_REQUESTS = 20_000
FUZZING_S = 2800
"""Four minutes on a quiet machine."""
PYTEST = ("pytest", "pytest-asyncio", "respx", "dirty-equals", "rich", "inline-snapshot")
STORED_IDS = ("resp_677efb5139a88190b512bc3fef8e535d", "response_id")
"""Ids of stored responses that openai-python's tests want to retrieve, delete, cancel and list."""


@dataclass
class Result:
    """The result of one suite."""

    suite: str
    passed: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    """Tests that do not apply, by reason."""
    unexplained: list[str] = field(default_factory=list)
    note: str = ""

    def count(self, name: str, *, passed: bool, why: str = "") -> None:
        if passed:
            self.passed += 1
            return
        for pattern, reason in NOT_APPLICABLE.get(self.suite, {}).items():
            if re.search(pattern, name):
                self.explained[reason] += 1
                return
        self.unexplained.append(f"{name}: {why[:300]}")

    @property
    def row(self) -> str:
        total = self.passed + len(self.unexplained)
        return f"| {self.note} | {self.passed} of {total} | {self.explained.total()} |"


async def openai() -> Result:
    python = environment("suite-openai", "openai[aiohttp]", *PYTEST)
    tests = [
        f"tests/api_resources/{name}"
        for name in (
            "chat/test_completions.py",
            "test_responses.py",
            "responses",
            "test_models.py",
            "test_completions.py",
        )
    ]
    root = source(python, "openai")
    result = Result("openai", note=f"`{root.name}` `tests/api_resources` (chat, responses, models)")
    async with served(answer, model_name="gpt-6-astra") as gateway:
        session = gateway.sessions.open("suite")
        async with fresh_store(gateway, session) as url:
            await run_pytest(
                result,
                python,
                root,
                tests,
                TEST_API_BASE_URL=session.base_url(gateway.base_url),
                FRESH_STORE_URL=url,
            )
    return result


async def anthropic() -> Result:
    python = environment(
        "suite-anthropic", "anthropic[aiohttp]", "http-snapshot[httpx]", "time-machine", *PYTEST
    )
    tests = [
        f"tests/api_resources/{name}"
        for name in ("test_messages.py", "test_models.py", "beta/test_messages.py")
    ]
    root = source(python, "anthropic")
    result = Result("anthropic", note=f"`{root.name}` `tests/api_resources` (messages, models)")
    async with served(answer, model_name="model_id") as gateway:
        session = gateway.sessions.open("suite")
        url = session.base_url(gateway.base_url).removesuffix("/v1")
        await run_pytest(result, python, root, tests, TEST_API_BASE_URL=url)
    return result


async def run_pytest(
    result: Result, python: Path, root: Path, tests: list[str], **env: str
) -> None:
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        plugins = ["-p", "fresh_store"] if "FRESH_STORE_URL" in env else []
        _, printed = await run(
            python,
            *("-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", *plugins),
            *("--override-ini", "addopts=", "--override-ini", "filterwarnings="),
            *("--override-ini", "xfail_strict=false", f"--junitxml={report}", *tests),
            cwd=root,
            timeout_s=TIMEOUT_S,
            PYTHONPATH=str(HERE / "plugins"),
            **env,
        )
        if not report.is_file():
            sys.exit(f"{result.suite}: pytest did not finish:\n{printed[-4000:]}")
        for case in ElementTree.parse(report).iter("testcase"):
            if case.find("skipped") is not None:
                continue
            bad = case.find("failure")
            bad = case.find("error") if bad is None else bad
            module, _, test_class = case.get("classname", "").rpartition(".")
            name = f"{module.replace('.', '/')}.py::{test_class}::{case.get('name')}"
            why = "" if bad is None else bad.get("message", "")
            result.count(name, passed=bad is None, why=why)


class fresh_store:
    """An address that stores, when it is asked, what openai-python's tests look for."""

    def __init__(self, gateway: Gateway, session: Session) -> None:
        self._store = gateway._model._responses.store(session)
        self._url = f"{session.base_url(gateway.base_url)}/responses"
        self._model = gateway.model_name

    async def __aenter__(self) -> str:
        body = {"model": self._model, "input": "Hi", "background": True, "stream": True}
        async with aiohttp.ClientSession() as http, http.post(self._url, json=body) as reply:
            response_id = re.search(r'"id":"(resp_\w+)"', await reply.text())
        assert response_id is not None, "the stream names its response"
        self._made = self._store.get(response_id[1])
        app = web.Application()
        app.router.add_get("/", self._restore)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _restore(self, request: web.Request) -> web.Response:
        for response_id in STORED_IDS:
            response = {**self._made.response, "id": response_id}
            self._store.add(replace(self._made, response=response))
        return web.Response()


async def llm_comply() -> Result:
    python = environment("suite-llm-comply", "llm-comply==0.5.0")
    result = Result(
        "llm-comply", note="`llm-comply` 0.5.0 (openai-chat, open-responses, anthropic)"
    )
    async with served(answer) as gateway:
        for form in ("openai-chat", "open-responses", "anthropic"):
            session = gateway.sessions.open(form)
            _, printed = await run(
                *(python.parent / "llm-comply", "run", "--json", "--format", form),
                *("-u", session.base_url(gateway.base_url), "-k", session.key, "-m", "policy"),
                timeout_s=TIMEOUT_S,
            )
            for check in json.loads(printed)["results"]:
                if check["status"] != "skipped":
                    why = "; ".join(check.get("errors") or ())
                    name = f"{form}: {check['name']}"
                    result.count(name, passed=check["status"] == "passed", why=why)
    return result


async def schemathesis() -> Result:
    """Fuzz what our own OpenAPI document describes, control plane included."""
    python = environment("suite-schemathesis", "schemathesis")
    result = Result("schemathesis")
    async with served(answer, tokens_per_chunk=100) as gateway:
        root = gateway.base_url.removesuffix("/v1")
        async with aiohttp.ClientSession() as http, http.get(f"{root}/openapi.json") as reply:
            document = await reply.json()
        paths = document["paths"]
        num_extreme = await send_extremes(result, root, document)
        num_operations = sum(len(paths[p]) for p in paths if not re.search(LEFT_OUT, p))
        code, printed = await run(
            *(python.parent / "st", "run", f"{root}/openapi.json"),
            *("--phases", "coverage,fuzzing", "--workers", "1", "--seed", "1", "--no-color"),
            *("--max-examples", str(2 * NUM_REQUESTS // num_operations), "--continue-on-failure"),
            *("--checks", ",".join(CHECKS), "--exclude-path-regex", LEFT_OUT),
            *("-H", "Authorization: Bearer sk-admin-of-clients", "--max-time", str(FUZZING_S)),
            *("--suppress-health-check", "all", "--request-timeout", "30"),
            timeout_s=FUZZING_S + 120,
        )
        num_generated = re.search(r"([\d,]+) generated", printed)
        if code or num_generated is None:
            result.unexplained.append(printed[-6000:])
            return result
    result.passed = num_extreme + int(num_generated[1].replace(",", ""))
    if result.passed < NUM_REQUESTS:
        result.unexplained.append(
            f"only {result.passed} of {NUM_REQUESTS} requests in {FUZZING_S} s"
        )
    result.note = f"schemathesis, fuzzed requests to {num_operations} operations"
    return result


EXTREMES = (
    "[" * 300 + "]" * 300,
    '{"a":' * 900 + "1" + "}" * 900,
    "[" * 50_000 + "]" * 50_000,
    "1e308",
    "-1e308",
    "1e999",
    "9" * 400,
    '"' + "x" * 1_000_000 + '"',
    '"' + "9" * 10_000 + '"',
    "[" + "{}," * 50_000 + "{}]",
    "[" + '"x",' * 50_000 + '"x"]',
    "{" + ",".join(f'"k{i}":{i}' for i in range(50_000)) + "}",
    r'"\ud83d"',
)
"""Values that a fuzzer seldom comes to: deep, huge, wide, half a character. As JSON text."""


async def send_extremes(result: Result, root: str, document: dict[str, Any]) -> int:
    """Every field of every body with each of `EXTREMES`; how many were answered as they should."""
    num_sent = 0
    headers = {"Authorization": "Bearer sk-admin-of-clients"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for path, operations in document["paths"].items():
            body = operations.get("post", {}).get("requestBody")
            if body is None or re.search(LEFT_OUT, path):
                continue
            name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            fields = document["components"]["schemas"][name]["properties"]
            needed = {field: json.dumps(VALID.get(field, 1)) for field in VALID if field in fields}
            for field, value in ((f, v) for f in fields for v in EXTREMES):
                pairs = {**needed, field: value}.items()
                raw = "{" + ",".join(f'"{key}":{text}' for key, text in pairs) + "}"
                url = root + path.replace("{id}", "none")
                async with http.post(url, data=raw.encode()) as reply:
                    answered = await reply.text()
                num_sent += 1
                if reply.status >= 500:
                    what = f"{path}: {field} = {value[:40]}... is a {reply.status}"
                    result.unexplained.append(f"{what}: {answered[:200]}")
    return num_sent


VALID: dict[str, Any] = {
    "model": "policy",
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": "Hi",
    "input": "Hi",
    "max_tokens": 3,
    "reward": 1,
}
"""Values of the other fields of such a body."""


LEFT_OUT = "^/control/pause$|^/v1/embeddings$"
"""The one would hold all others, the other is a 501 by design."""

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


def answer(prompt: str) -> str:
    """A greeting, or the rest of a call that the prompt begins."""
    is_call = prompt.endswith('"arguments": ')
    return '{"location": "San Francisco"}}\n</tool_call>' if is_call else "Hello there."


SUITES: dict[str, Callable[[], Awaitable[Result]]] = {
    "openai": openai,
    "anthropic": anthropic,
    "llm-comply": llm_comply,
    "schemathesis": schemathesis,
}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--write", action="store_true", help="the figures into docs/gateway.md")
    options = parser.parse_args()
    if options.write and set(options.only) != set(SUITES):
        parser.error("--write needs all suites: the table on the page has a row for each of them")
    results = [await SUITES[name]() for name in options.only]
    lines = ["| suite | passed | not applicable |", "|---|---|---|"]
    lines += [result.row for result in results]
    print("\n".join(lines))
    for result in results:
        for reason, number in result.explained.most_common():
            print(f"not applicable, {result.suite}, {number}: {reason}")
        for failure in result.unexplained:
            print(f"FAILED {result.suite}: {failure}")
    if options.write:
        write_table(PAGE, "suites", lines)
    return int(any(result.unexplained for result in results))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

"""`areal-sdk eval` and `areal-sdk serve`, as a user runs them."""

import ast
import json
import shlex
import shutil
import signal
from pathlib import Path

import openai
import pytest

from areal_sdk import EpisodeContext, Task
from areal_sdk.config import parse_config
from areal_sdk.loop.serving import announce
from areal_sdk.models import resolve_model
from areal_sdk.rollout.agents.endpoint import EndpointRunner
from areal_sdk.rollout.tasks import EpisodeRequest
from tests.loop.runs import AGENT, SCRIPTED_ENGINE, finish, start_command, told
from tests.toolbox.upstream import upstream_gateway

ENDPOINT_AGENT = """
from openai import AsyncOpenAI
from areal_sdk import Agent, Task

class Echo(Agent):
    async def run(self, task, context):
        client = AsyncOpenAI(base_url=context.base_url, api_key=context.api_key)
        answer = await client.chat.completions.create(
            model=context.model, messages=[{"role": "user", "content": "hello"}], max_tokens=4
        )
        return float(answer.usage.completion_tokens > 0)

def tasks(split):
    for index in range(3):
        yield Task(f"{split}-{index}")
"""


def test_eval_reports_success_with_confidence_intervals() -> None:
    process = start_command(
        "eval", str(AGENT), "--model", "tiny", "--num-tasks", "4", "--samples", "2", "--json"
    )
    report = json.loads(finish(process))["tiny"]
    assert report["tasks"] == 4
    assert report["scored"] == 8
    assert report["reward_low"] <= report["reward"] <= report["reward_high"]
    assert {"pass@1", "pass@2"} <= set(report)


async def test_a_key_that_was_given_is_not_printed() -> None:
    secret, told_lines = "sk-given-by-the-user", list[str]()
    config = parse_config({"model": "theirs", "gateway": {"admin_key": secret}})
    gateway = upstream_gateway("http://127.0.0.1:9/v1", admin_key=secret)
    try:
        await gateway.start()
        announce(config, gateway, say=told_lines.append)
    finally:
        await gateway.aclose()
    text = "\n".join(told_lines)
    assert secret not in text
    assert "key: the one you gave (AREAL_SDK_ADMIN_KEY, gateway.admin_key or --admin-key)" in text
    assert '-H "Authorization: Bearer $KEY"' in text
    for line in told_lines[-2:]:
        call = ast.parse(line.strip(), mode="eval").body
        assert isinstance(call, ast.Call)
        assert ast.unparse(call.keywords[-1]) == "api_key=os.environ['KEY']"


async def test_evaluating_an_endpoint_closes_its_connections() -> None:
    async def agent(task: Task, context: EpisodeContext) -> float:
        return 1.0

    config = parse_config({"agent": "agent.py", "model": "theirs"})
    url = "http://127.0.0.1:9/v1"
    async with EndpointRunner(config, agent, split="eval", base_url=url, api_key="k") as runner:
        pool = runner._http_client
        assert not pool.is_closed
        assert (await runner.run(EpisodeRequest("e", Task("t")))).outcome.reward == 1.0
    assert pool.is_closed


def test_serve_answers_openai_clients_and_eval_takes_it_as_an_endpoint(tmp_path: Path) -> None:
    server = start_command("serve", "--model", "tiny", "--port", "0")
    assert server.stdout is not None
    try:
        url = told(server.stdout, r"serving tiny at (\S+)")
        key = told(server.stdout, r"key: (\S+)")
        _, address, *_, authorization, _, body = shlex.split(told(server.stdout, r"(curl .+)"))
        assert address == f"{url}/chat/completions"
        told(
            server.stdout, rf'(Anthropic\(base_url="{url.removesuffix("/v1")}", api_key="{key}"\))'
        )
        assert authorization == f"Authorization: Bearer {key}"
        with openai.OpenAI(base_url=url, api_key=key) as client:
            assert client.post("/chat/completions", body=json.loads(body), cast_to=object)
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5
            )
        assert answer.usage is not None
        assert 0 < answer.usage.completion_tokens <= 5
        with (
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()
        agent = tmp_path / "echo.py"
        agent.write_text(ENDPOINT_AGENT)
        process = start_command(
            "eval", str(agent), "--model", "tiny", "--base-url", url, "--api-key", key, "--json"
        )
        warning, _, summary = finish(process).partition("\n")
        assert "other users of this machine can read --api-key" in warning
        assert json.loads(summary)["tiny"]["success"] == 1.0
    finally:
        server.send_signal(signal.SIGINT)
    finish(server)


def test_serve_says_when_a_model_has_no_certificate(tmp_path: Path) -> None:
    model = tmp_path / "mine"
    shutil.copytree(resolve_model("tiny"), model)
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "{# mine #}")
    cache = {"AREAL_SDK_CACHE": str(tmp_path / "cache")}
    command = ("serve", "--model", str(model), "--port", "0", *SCRIPTED_ENGINE)
    server = start_command(*command, env=cache)
    assert server.stdout is not None
    try:
        cure = told(server.stdout, r"has no token-exactness certificate: see (.+)")
        assert cure.strip() == f"areal-sdk doctor model {model}"
        told(server.stdout, r"(try it)")
    finally:
        server.send_signal(signal.SIGINT)
    finish(server)

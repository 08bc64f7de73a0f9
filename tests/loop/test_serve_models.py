"""Several models behind one `areal-sdk serve`: other names, and arms that sessions keep, in a server as a user runs it."""

import json
import signal
from pathlib import Path

import openai
import pytest
from click.testing import CliRunner
from openai import OpenAI

from areal_sdk.cli.main import cli
from tests.loop.runs import SCRIPTED, finish, refused, run_dir, start_command, told

SETTINGS = """
model = "tiny"
[policy.base]
frozen = "tiny"
[policy.trained]
[serve.models]
gpt-4 = "base"
shop = { base = 1, trained = 1 }
"""


def test_a_session_keeps_its_arm_and_the_record_names_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(SETTINGS)
    server = start_command(
        *("serve", "--record", "--config", str(file), "--port", "0", *SCRIPTED),
        *("--set", f"run.dir={tmp_path}", "--set", "run.name=run"),
    )
    assert server.stdout is not None
    url, key = told(server.stdout, r"serving tiny at (\S+)"), told(server.stdout, r"key: (\S+)")
    arms = {}
    for number in range(16):
        with OpenAI(base_url=url, api_key=f"{key}/{number}", max_retries=0) as caller:
            arms[f"admin/{number}"] = ask(caller, "shop")
            assert ask(caller, "shop") == arms[f"admin/{number}"]
            reward = float(arms[f"admin/{number}"] == "trained")
            caller.post("/reward", body={"reward": reward}, cast_to=object)
    with OpenAI(base_url=url, api_key=key, max_retries=0) as caller:
        assert ask(caller, "gpt-4") == "base"
        with pytest.raises(openai.NotFoundError, match="base, trained, gpt-4, shop"):
            ask(caller, "gpt-5")
    server.send_signal(signal.SIGINT)
    finish(server)
    run = run_dir(tmp_path)
    assert {*arms.values()} == {"base", "trained"}
    for name, arm in arms.items():
        assert [turn.policy for turn in run.find_episode(name).episode.turns] == [arm, arm]
    compared = CliRunner().invoke(cli, ["traces", "arms", str(run.path)], catch_exceptions=False)
    num_base = [*arms.values()].count("base")
    assert f"base     {num_base + 1} sessions, {num_base} scored, mean 0.000 [" in compared.output
    assert f"{16 - num_base} sessions, {16 - num_base} scored, mean 1.000 [" in compared.output
    assert "trained - base  1.000 [" in compared.output
    rows = CliRunner().invoke(cli, ["traces", str(run.path), "--mask", "none"]).stdout.splitlines()
    assert {json.loads(row)["model"] for row in rows} == {"base", "trained"}


def ask(caller: OpenAI, model: str) -> str:
    messages = [{"role": "user", "content": "hi"}]
    reply = caller.chat.completions.create(model=model, messages=messages, max_tokens=4)  # type: ignore[arg-type]
    return reply.model


def test_names_of_no_model_are_refused_with_the_cure(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    for text, told_why in (
        ('[serve.models]\nshop = "base"', "give each model a table [policy.NAME]"),
        (SETTINGS + 'x = "third"', "'third', which is no policy; known: base, trained"),
        (SETTINGS + 'base = "trained"', "'base' is a policy already"),
        (SETTINGS + "x = { base = 0 }", "weights above 0"),
        (SETTINGS + "x = { }", "weights above 0"),
    ):
        file.write_text(text)
        assert told_why in refused("serve", "--config", str(file))
    file.write_text(SETTINGS)
    told_why = refused("serve", "--config", str(file), "--upstream", "http://127.0.0.1:9/v1")
    assert "another provider" in told_why

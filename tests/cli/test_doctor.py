"""`doctor` finds what would stop a run, and says what to do about it."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.certificate.findings import Finding, Severity
from areal_sdk.cli.doctor import checks, doctor
from areal_sdk.models import resolve_model
from tests.loop.runs import SCRIPTED_ENGINE
from tests.plugins.conftest import Install, install

__all__ = ["install"]  # the fixture, shared with the plugins' tests

STRICT_TEMPLATE = """
{%- for m in messages %}
{%- if m.role not in ("user", "assistant") %}
{{- raise_exception("only user and assistant roles are supported") }}
{%- endif %}
{{- "<|im_start|>" + m.role + "\\n" + m.content + "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{% endif %}
"""

FORGETFUL_TEMPLATE = """
{%- for m in messages %}
{%- if m.role != "assistant" or loop.last %}
{{- "<|im_start|>" + m.role + "\\n" + m.content + "<|im_end|>\\n" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{% endif %}
"""
"""Shows the model none of its own earlier answers."""

AGENT_WITH_TOOLS = """
from areal_sdk import Agent, Task

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class WithTools(Agent):
    async def run(self, task, context):
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=context.base_url, api_key=context.api_key)
        messages = [{"role": "user", "content": "1 + 1?"}]
        await client.chat.completions.create(model=context.model, messages=messages, tools=[TOOL])
        return 1.0


def tasks(split):
    yield Task("one")
"""


def find(what: str, *, model: str = "tiny", port: int = 0) -> list[Finding]:
    """Findings about `what` from all checks but torch's, which is slow."""
    chosen = [c for c in checks(model=model, port=port) if c.__name__ != "_torch"]
    return [f for c in chosen for f in c() if f.check == what]


def test_this_machine_can_do_it() -> None:
    result = CliRunner().invoke(doctor, ["--json", "--port", "0"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    findings = {f["check"]: f for f in json.loads(result.output)}
    assert findings["python"]["level"] == "ok"
    assert findings["model tiny"]["found"] == "its template renders tools"
    assert "areal-sdk" in findings["plugins"]["found"]


def test_a_broken_plugin_fails_the_check(install: Install) -> None:
    install("areal-sdk-broken", "import no_such_package")
    (finding,) = find("plugin")
    assert finding.level is Severity.FAILED
    assert "areal-sdk-broken" in finding.found


def test_a_taken_port_is_noticed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (finding,) = find(f"port {port}", port=port)
    assert finding.level is Severity.NOTE
    assert "--port 0" in finding.cure


def test_a_proxy_that_would_swallow_loopback_calls_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ALL_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    assert "NO_PROXY" in find("proxy")[0].cure
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert not find("proxy")


def test_a_model_without_a_tokenizer_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (finding,) = find(f"model {tmp_path}", model=str(tmp_path))
    assert finding.level is Severity.FAILED
    assert "tokenizer.json" in finding.found


def test_a_family_is_told_whether_it_trains_and_where_it_runs(tmp_path: Path) -> None:
    model = Path(shutil.copytree(resolve_model("tiny"), tmp_path / "model"))
    assert find("trainer")[0].found == "trains tiny"
    assert find("local engine")[0].found == "runs tiny"
    config = model / "config.json"
    config.write_text(config.read_text().replace('"qwen3"', '"gpt_oss"'))
    (trainer,) = find("trainer", model=str(model))
    (engine,) = find("local engine", model=str(model))
    assert trainer.level is engine.level is Severity.NOTE
    assert "does not train 'gpt_oss' models, whose attention leaves a share" in trainer.found
    assert "serve this model with SGLang" in engine.found


def test_a_template_that_takes_no_tools_is_noticed_and_an_agent_with_tools_is_told(
    tmp_path: Path,
) -> None:
    model = tmp_path / "strict"
    shutil.copytree(resolve_model("tiny"), model, ignore=shutil.ignore_patterns("*.jinja"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = STRICT_TEMPLATE
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (finding,) = find(f"model {model}", model=str(model))
    assert finding.level is Severity.NOTE
    assert "takes no tools: only user and assistant" in finding.found

    agent = tmp_path / "agent.py"
    agent.write_text(AGENT_WITH_TOOLS)
    command = [sys.executable, "-m", "areal_sdk", "eval", str(agent), "--model", str(model)]
    command += SCRIPTED_ENGINE
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stdout
    assert "400 - the model's chat template does not accept these messages" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_is_not_certified_is_noticed_and_one_that_cannot_be_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AREAL_SDK_CACHE", str(tmp_path / "cache"))
    (known,) = find("certificate", model="tiny")
    assert known.level is Severity.OK
    model = tmp_path / "forgetful"
    shutil.copytree(resolve_model("tiny"), model, ignore=shutil.ignore_patterns("*.jinja"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = FORGETFUL_TEMPLATE
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (doubt,) = find("certificate", model=str(model))
    assert doubt.level is Severity.NOTE
    assert doubt.cure == f"areal-sdk doctor model {model}"
    assert CliRunner().invoke(doctor, ["model", str(model)]).exit_code == 1
    (verdict,) = find("certificate", model=str(model))
    assert verdict.level is Severity.FAILED


def test_doctor_itself_never_imports_torch() -> None:
    code = (
        "from areal_sdk.cli.doctor import checks\n"
        "import sys\n"
        "for check in checks(model='tiny', port=0):\n"
        "    if check.__name__ != '_torch': list(check())\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

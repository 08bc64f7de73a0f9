"""`areal-sdk doctor model`: a verdict with an exit code, for people and for programs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.certificate import TokenFinding, is_certified, warning
from areal_sdk.certificate.findings import Severity
from areal_sdk.cli.certificate import token_diff
from areal_sdk.cli.doctor import doctor
from areal_sdk.errors import ConfigError
from tests.gateway.model_dirs import make_model_dir


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AREAL_SDK_CACHE", str(tmp_path / "cache"))


def test_a_certificate_is_exit_code_0_and_is_kept(tmp_path: Path) -> None:
    model = make_model_dir(tmp_path / "model", "llama3")
    result = CliRunner().invoke(doctor, ["model", str(model)])
    assert result.exit_code == 0, result.output
    assert result.output.endswith(f"{model}: certified\n")
    assert is_certified(model) is True


@pytest.fixture
def asks_otherwise(tmp_path: Path) -> Path:
    """A model whose template asks for an answer in other words than it writes one."""
    model = make_model_dir(tmp_path / "model", "smollm2")
    template = model / "chat_template.jinja"
    asks = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
    template.write_text(template.read_text().replace(asks, asks.replace("\\n", ": ")))
    return model


def test_no_certificate_is_exit_code_1_with_a_cure_and_tokens(asks_otherwise: Path) -> None:
    result = CliRunner().invoke(doctor, ["model", str(asks_otherwise)])
    assert result.exit_code == 1
    assert "add_generation_prompt" in result.output
    assert "expected" in result.output
    assert "[:][ ]" in result.output
    assert is_certified(asks_otherwise) is False


def test_a_failed_certificate_as_json_names_the_check_and_both_texts(asks_otherwise: Path) -> None:
    as_json = CliRunner().invoke(doctor, ["model", str(asks_otherwise), "--json"])
    assert as_json.exit_code == 1
    report = json.loads(as_json.output)
    assert report["certified"] is False
    (failure,) = [f for f in report["findings"] if f["level"] == "failed"]
    assert failure["check"] == "asks for answers"
    assert failure["expected"] != failure["got"]


def test_what_every_client_met_is_said_once(tmp_path: Path) -> None:
    model = make_model_dir(tmp_path / "model", "smollm2")
    template = model / "chat_template.jinja"
    kept = "for message in messages if message.role != 'assistant' or message == messages[-1] -%}"
    template.write_text(template.read_text().replace("for message in messages -%}", kept))
    result = CliRunner().invoke(doctor, ["model", str(model)])
    assert result.exit_code == 1
    (told,) = [line for line in result.output.splitlines() if "or rewritten" in line]
    assert "all 16 clients: request 2" in told


def test_a_users_own_transcript_is_played_too(tmp_path: Path) -> None:
    model = make_model_dir(tmp_path / "model", "qwen2.5")
    user = {"role": "user", "content": "Hi"}
    answer = {"role": "assistant", "content": "Hello"}
    edited = {"role": "assistant", "content": "Good day"}
    requests = [
        {"messages": [user], "tools": [], "answer": answer},
        {"messages": [user, edited, user], "tools": [], "answer": answer},
    ]
    transcript = tmp_path / "mine.json"
    transcript.write_text(json.dumps({"client": "mine", "requests": requests}))
    result = CliRunner().invoke(doctor, ["model", str(model), "--transcript", str(transcript)])
    assert result.exit_code == 1
    assert "mine: request 2 starts another sequence: edited" in result.output


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """A model whose template does not show in which format it calls tools."""
    model = make_model_dir(tmp_path / "model", "llama3")
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace('"parameters": ', '"parameters":'))
    return model


def test_a_template_that_shows_no_format_is_refused_with_the_option(silent: Path) -> None:
    refused = CliRunner().invoke(doctor, ["model", str(silent)])
    assert refused.exit_code == 1
    assert "--tool-format" in refused.output
    assert is_certified(silent) is False


def test_a_format_that_is_named_is_the_only_one_that_is_certified(silent: Path) -> None:
    result = CliRunner().invoke(doctor, ["model", str(silent), "--tool-format", "llama"])
    assert result.exit_code == 0, result.output
    assert is_certified(silent, tool_format="llama") is True
    assert is_certified(silent) is None, "nobody tried it without"
    doubt = warning(silent, tool_format="mistral")
    assert doubt is not None
    assert doubt.endswith(f"doctor model {silent} --tool-format mistral")


def test_an_unknown_format_is_refused_with_the_known_ones(silent: Path) -> None:
    unknown = CliRunner().invoke(doctor, ["model", str(silent), "--tool-format", "lama"])
    assert isinstance(unknown.exception, ConfigError), unknown.output
    assert "unknown tool_format 'lama'; known: " in str(unknown.exception)
    assert "did you mean 'llama'?" in str(unknown.exception)


def test_a_diff_begins_a_little_before_the_difference_and_cannot_steer_a_terminal() -> None:
    same = tuple("abcdefgh")
    finding = TokenFinding(
        Severity.FAILED, "drift", "", expected=(*same, "\n", "x"), got=(*same, "\x1b[2J", "x")
    )
    expected, got = token_diff(finding)
    assert "[b]" not in expected
    assert "[c]" in expected
    assert "\\n" in expected
    assert "\x1b[2J" not in got


def test_a_model_is_certified_without_torch(tmp_path: Path) -> None:
    model = make_model_dir(tmp_path / "model", "qwen3")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from areal_sdk.certificate import certify\n"
        f"assert certify(Path({str(model)!r})).is_certified\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_rows_that_a_model_cannot_learn_are_named(tmp_path: Path) -> None:
    model, rows = make_model_dir(tmp_path / "model", "smollm2"), tmp_path / "rows.jsonl"
    answer = {"role": "assistant", "content": "4"}
    said = ["2 + 2?", "long " * 5_000]
    rows.write_text(
        "\n".join(json.dumps({"messages": [{"role": "user", "content": c}, answer]}) for c in said)
    )
    result = CliRunner().invoke(doctor, ["model", str(model), "--rows", str(rows)])
    assert f"{rows}: 1 of 2 conversations can be learnt" in result.output
    assert "longer than 4096 tokens" in result.output
    as_json = CliRunner().invoke(doctor, ["model", str(model), "--rows", str(rows), "--json"])
    fit = json.loads(as_json.output)["rows"][str(rows)]
    assert fit["learnt"] == 1
    assert fit["tokens"]["p100"] > 5_000

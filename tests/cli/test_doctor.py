"""`doctor` finds what would stop a run, and says what to do about it."""

import json
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.cli.doctor import Finding, Level, checks, doctor
from tests.plugins.conftest import Install, install

__all__ = ["install"]  # the fixture, shared with the plugins' tests


def find(what: str, *, model: str = "tiny", port: int = 0) -> list[Finding]:
    """What all checks but torch's, which is slow, say of `what`."""
    chosen = [c for c in checks(model=model, port=port) if c.__name__ != "_torch"]
    return [f for c in chosen for f in c() if f.what == what]


def test_this_machine_can_do_it() -> None:
    result = CliRunner().invoke(doctor, ["--json", "--port", "0"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    findings = {f["what"]: f for f in json.loads(result.output)}
    assert findings["python"]["level"] == "ok"
    assert findings["model tiny"]["found"] == "its template renders tools"
    assert "areal-sdk" in findings["plugins"]["found"]


def test_a_broken_plugin_fails_the_check(install: Install) -> None:
    install("areal-sdk-broken", "import no_such_package")
    (finding,) = find("plugin")
    assert finding.level is Level.FAILED
    assert "areal-sdk-broken" in finding.found


def test_a_taken_port_is_noticed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (finding,) = find(f"port {port}", port=port)
    assert finding.level is Level.NOTE
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
    assert finding.level is Level.FAILED
    assert "tokenizer.json" in finding.found


def test_doctor_itself_never_imports_torch() -> None:
    import subprocess

    code = (
        "from areal_sdk.cli.doctor import checks\n"
        "import sys\n"
        "for check in checks(model='tiny', port=0):\n"
        "    if check.__name__ != '_torch': list(check())\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

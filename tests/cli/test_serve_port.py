"""The port of `areal-sdk serve` is 8000, unless anybody says another."""

import signal
import socket
from pathlib import Path

import pytest

from areal_sdk.cli.serve import DEFAULT_PORT, with_port
from areal_sdk.config import parse_config
from tests.loop.runs import finish, refused, start_command, told
from tests.toolbox.processes import deaf_to_ctrl_c


@pytest.mark.parametrize("way", ["--port", "--set", "--config"])
def test_a_port_that_was_given_in_any_way_is_listened_on(tmp_path: Path, way: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = tmp_path / "serve.toml"
    file.write_text(f"[gateway]\nport = {port}\n")
    given = {"--port": str(port), "--set": f"gateway.port={port}", "--config": str(file)}[way]
    server = start_command(
        *("serve", "--upstream", "http://127.0.0.1:9/v1", "--set", f"run.dir={tmp_path}"),
        *(way, given),
    )
    assert server.stdout is not None
    try:
        assert told(server.stdout, r"serving \S+ at http://127.0.0.1:(\d+)") == str(port)
    finally:
        server.send_signal(signal.SIGINT)
    assert finish(server).endswith("stopped\n")


def test_the_background_job_of_a_script_says_that_it_records_and_ends_by_ctrl_c(
    tmp_path: Path,
) -> None:
    server = start_command(
        *("serve", "--upstream", "http://127.0.0.1:9/v1", "--set", f"run.dir={tmp_path}"),
        *("--port", "0"),
        env={"AREAL_SDK_UPSTREAM_KEY": ""},
        preexec=deaf_to_ctrl_c,
    )
    assert server.stdout is not None
    try:
        run = told(server.stdout, r"recording: .* every caller .* is written to (\S+)")
        assert Path(run).parent == tmp_path
        assert told(server.stdout, r"no key .* unless (\S+) is set") == "AREAL_SDK_UPSTREAM_KEY"
    finally:
        server.send_signal(signal.SIGINT)
    finish(server)


@pytest.mark.parametrize("way", ["--learn", "--record"])
def test_a_port_in_use_is_found_before_anything_is_loaded(tmp_path: Path, way: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        run = ("--set", f"run.dir={tmp_path}/runs")
        told_why = refused("serve", way, "--model", str(tmp_path / "none"), "--port", port, *run)
    assert "cannot listen on 127.0.0.1" in told_why
    assert "choose another port" in told_why
    assert not (tmp_path / "runs").exists()


def test_where_nobody_says_a_port_it_is_the_one_that_clients_remember() -> None:
    assert with_port(parse_config({})).gateway.port == DEFAULT_PORT
    assert with_port(parse_config({"gateway": {"host": "::1"}})).gateway.port == DEFAULT_PORT
    assert with_port(parse_config({"gateway": {"port": 0}})).gateway.port == 0

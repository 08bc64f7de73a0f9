"""litellm's proxy as its own benchmarks configure it: one uvicorn worker, no callbacks, no retries,
no database, no master key, errors alone logged. It knows no sessions.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from seats import announce, parser, wait_for_end

READY_S = 100.0
ENVIRONMENT = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # prices come with the package: nothing to download
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # no keys, nothing to check
}


def main() -> None:
    options = parser(__doc__).parse_args()
    config = {
        "model_list": [
            {
                "model_name": "m",
                "litellm_params": {
                    "model": "openai/m",
                    "api_base": f"{options.upstream}/v1",
                    "api_key": "none",
                },
            }
        ],
        "litellm_settings": {
            "callbacks": [],
            "num_retries": 0,
            "request_timeout": 30,
            "set_verbose": False,
            "telemetry": False,
        },
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        url = f"http://127.0.0.1:{(port := free_port())}"
        program = Path(sys.executable).with_name("litellm")
        command = [str(program), "--config", str(path), "--host", "127.0.0.1", "--port", str(port)]
        proxy = subprocess.Popen([*command, "--num_workers", "1"], env=os.environ | ENVIRONMENT)
        try:
            wait_until_ready(proxy, f"{url}/health/liveliness")
            announce([(f"{url}/v1", "")] * options.sessions)
            wait_for_end()
        finally:
            proxy.terminate()
            proxy.wait(timeout=20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(proxy: "subprocess.Popen[bytes]", url: str) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and proxy.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"the proxy did not answer at {url}")


if __name__ == "__main__":
    main()

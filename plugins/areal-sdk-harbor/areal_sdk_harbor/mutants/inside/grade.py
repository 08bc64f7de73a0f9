"""The verdict: the agent's source files in a fresh tree, under the distribution's own tests. It runs as `python3 -I`.

Only the source files that the task lists are taken. Edited tests, new files, settings and start-up files stay behind.
"""

import json
import os
import pathlib
import secrets
import subprocess
import sys
import tarfile

TESTS = pathlib.Path("/tests")


def main():
    task = json.loads((TESTS / "expected.json").read_text())
    room = TESTS / "room"
    with tarfile.open(TESTS / "pristine.tar") as archive:
        archive.extractall(room, filter="data")
    for name in task["sources"]:
        given = pathlib.Path("/app", name)
        # A missing file is a broken one. A link could lead to anything.
        whole = given.is_file() and not any(one.is_symlink() for one in (given, *given.parents))
        (room / name).write_bytes(given.read_bytes() if whole else b"raise ImportError")
    passed = run(task, room) & set(task["tests"])
    share = len(passed) / len(task["tests"])
    reward = float(passed == set(task["tests"]))
    verdict = {"reward": reward, "tests_passed": share}
    pathlib.Path("/logs/verifier/reward.json").write_text(json.dumps(verdict))


def run(task, room):
    token, report = secrets.token_hex(), TESTS / f"report-{secrets.token_hex(8)}.json"
    words = [sys.executable, "-I", str(TESTS / "run_tests.py")]
    given = [str(room), task["place"], str(report), *task["files"]]
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        subprocess.run(
            [*words, *given], input=token + "\n", text=True, env=env, timeout=task["timeout_s"]
        )
        told = json.loads(report.read_text())
    except (subprocess.TimeoutExpired, OSError, ValueError):
        return set()
    return set(told["passed"]) if told.get("token") == token else set()


main()

"""Runs the tests of a distribution with pytest, and reports by name which passed. It runs in the sandbox, as `python3 -I`.

`run_tests.py ROOT PLACE REPORT FILE...`: sources are imported from ROOT/PLACE. The token that comes on stdin is in the report: a
report without it does not count. The report is written last, so a run that exits early passes nothing.
"""

import json
import os
import sys

root, place, report, *files = sys.argv[1:]
token = sys.stdin.readline().strip()
sys.dont_write_bytecode = True
os.chdir(root)
sys.path[:0] = [os.path.join(root, place), root]

import pytest  # noqa: E402 - it stands after the path, which tests may import from at once


class Recorder:
    """The tests that passed, with their setup and their teardown."""

    def __init__(self):
        self.passed = {}

    def pytest_runtest_logreport(self, report):
        self.passed[report.nodeid] = self.passed.get(report.nodeid, True) and report.passed


recorder = Recorder()
options = ["-q", "-c", os.devnull, "--rootdir", root, "-p", "no:cacheprovider", "--tb=no"]
pytest.main([*options, *files], plugins=[recorder])
names = sorted(name for name, is_passed in recorder.passed.items() if is_passed)
with open(report, "w") as told:
    json.dump({"token": token, "passed": names}, told)

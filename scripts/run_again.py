"""Run the tests that failed once more, alone: python scripts/run_again.py

CI calls it where `make test` or `make long` failed. Three tests at most run again: more failures are no accident.
A test that passes now is flaky. It does not block a landing, and the list at CI's end names it, because a flaky
test is a bug of the test or of what it tests.
"""

import json
import subprocess
import sys
from pathlib import Path

AT_MOST = 3
SAID = "!! FLAKY TEST: "
"""The beginning of a line that `scripts/not_run.py` repeats."""


def main() -> int:
    record = Path(".pytest_cache/v/cache/lastfailed")
    failed = sorted(json.loads(record.read_text())) if record.exists() else []
    if not 0 < len(failed) <= AT_MOST:
        return 1  # what failed is no test, or more than one accident
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *failed], check=False
    ).returncode
    if code == 0:
        print(*(f"{SAID}failed beside others, passed alone: {test}" for test in failed), sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

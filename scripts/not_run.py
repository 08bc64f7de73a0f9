"""The tests that a log did not run, by reason, flaky ones and security first: python scripts/not_run.py LOG

The log is that of pytest with `-rs`, of one run or of several. `.ci/run` ends with this list.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

SKIPPED = re.compile(r"SKIPPED \[(\d+)\] (.+?):(?:\d+: )?\s*(.+)")
SAID = ("!! NOT TESTED: ", "!! FLAKY TEST: ")
"""The beginnings of lines that the CI run itself writes."""
SANDBOX = "bubblewrap"
"""A reason that names it is one of tests of the sandbox."""


def not_run(log: Iterable[str]) -> Iterator[str]:
    by_reason: dict[str, Counter[str]] = {}
    for line in log:
        if line.startswith(SAID):
            yield line.rstrip()
        elif found := SKIPPED.match(line):
            count, place, reason = found.groups()
            by_reason.setdefault(reason.strip(), Counter())[place] += int(count)
    for reason in sorted(by_reason, key=lambda one: (SANDBOX not in one, one)):
        of, places = ("!! SECURITY TESTS", by_reason[reason])
        of = of if SANDBOX in reason else "tests"
        yield f"{of} not run: {places.total()}: {reason}"
        yield from (f"    {count:4} {place}" for place, count in places.most_common())


if __name__ == "__main__":
    with Path(sys.argv[1]).open(errors="replace") as log:
        print("\n".join(not_run(log)) or "no test was skipped")

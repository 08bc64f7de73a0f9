"""The process of a verifier: a line of JSON in, a line of JSON out, until the end of stdin."""

import json
import logging
import os
import resource
import sys
from typing import Any


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a parser prints is no answer
    logging.disable(
        logging.WARNING
    )  # a line for each comparison, about the deadline that is not its own
    from math_verify import parse, verify

    verify(_parsed(parse, "x + 1"), _parsed(parse, "1 + x"))  # imports what is only now needed
    _die_of_memory(int(sys.argv[1]) << 20)
    _say(out, {"ready": True})
    for line in sys.stdin:
        question = json.loads(line)
        gold = _parsed(parse, question["expected"])
        same = False
        if "said" in question:
            said = _parsed(parse, question["said"])
            same = bool(verify(gold, said, timeout_seconds=None, raise_on_error=False))
        _say(out, {"same": same})


def _die_of_memory(num_bytes: int) -> None:
    """Limit the memory of the process: what it has, and an allowance for what it allocates from now on."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + num_bytes, used + num_bytes))


def _parsed(parse: Any, text: str) -> Any:
    # The caller's deadline kills this process; a timeout by signal would not stop all code in C.
    return parse(f"\\boxed{{{text}}}", parsing_timeout=None)


def _say(out: Any, answer: dict[str, bool]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main()

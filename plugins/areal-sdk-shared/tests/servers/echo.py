"""A library that plays: its tasks are the words of an order, and an episode does what its word says."""

import json
import os
import sys
import threading
import time
from typing import Any


def answer(order: dict[str, Any]) -> None:
    word = order["word"]
    if word == "die":
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    if word == "wait":
        time.sleep(600.0)
    told: dict[str, dict[str, Any]] = {
        "fail": {"error": "no such word"},
        "fork": {"died": "the fork died"},
        "abstain": {"reward": None, "metrics": {}},
    }
    verdict = {"reward": len(word), "metrics": {"process": os.getpid()}}
    # One write, since `print` writes the line and its end apart, and another thread may write between them.
    sys.stdout.write(json.dumps({"id": order["id"], **told.get(word, verdict)}) + "\n")
    sys.stdout.flush()


if sys.argv[1] == "list":
    words = json.loads(sys.stdin.readline())["words"]
    if not words:
        sys.exit("there are no words")
    for word in words:
        print(json.dumps({"key": word, "path": os.environ.get("PYTHONPATH", "")}))
else:
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "play":
            threading.Thread(target=answer, args=(order,), daemon=True).start()
        else:
            print("cancelled", order["id"], file=sys.stderr, flush=True)

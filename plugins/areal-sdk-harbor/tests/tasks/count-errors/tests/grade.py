"""Writes the share of right numbers, and whether the answer was JSON at all."""

import json

EXPECTED = {"errors": 10, "days": 7}

try:
    with open("/app/answer.json") as file:
        answer = json.load(file)
    is_json = isinstance(answer, dict)
except (OSError, ValueError):
    answer, is_json = {}, False
right = sum(is_json and answer.get(name) == value for name, value in EXPECTED.items())
with open("/logs/verifier/reward.json", "w") as file:
    json.dump({"reward": right / len(EXPECTED), "is_json": int(is_json)}, file)

"""A command that plays an episode, and the examples of commands."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "commands"
ASK = f"""{sys.executable} -c '
import json, os, sys, urllib.request
task = json.load(sys.stdin)
assert task == json.load(open(os.environ["AREAL_SDK_TASK"]))
assert task["id"] == "task" and task["split"] == "train" and 0 <= task["seed"] < 2**32
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
messages = [{{"role": "user", "content": task["data"]["question"]}}]
def post(url, headers, **body):
    headers |= {{"Content-Type": "application/json"}}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
chat = post(url + "/chat/completions", {{"Authorization": "Bearer " + key}},
    model=os.environ["OPENAI_MODEL"], messages=messages)
message = post(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages",
    {{"x-api-key": os.environ["ANTHROPIC_API_KEY"]}},
    model=os.environ["ANTHROPIC_MODEL"], messages=messages, max_tokens=9)
said = [chat["choices"][0]["message"]["content"], message["content"][0]["text"]]
print(json.dumps({{"said": said}}))
print(json.dumps({{"reward": float(said == ["4", "4"]), "success": True, "metrics": {{"calls": 2}}}}))
print("bye")
'"""

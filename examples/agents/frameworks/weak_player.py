"""An engine that plays the number game badly: the teacher from which `tiny` learns how to call a tool.

areal-sdk serve --engine weak_player --plugin examples/agents/frameworks/weak_player.py --model tiny
"""

import random

from areal_sdk import GenerateRequest, hookimpl
from areal_sdk.testing import ScriptedEngine, tool_call

BEGUN = "<tool_call>\n"


class WeakPlayer(ScriptedEngine):
    def __init__(self, *, model_dir, log_dir):
        super().__init__(self.reply, model_dir=model_dir)
        self.generator = random.Random(0)

    def reply(self, request: GenerateRequest) -> str:
        prompt = self.decode(request.tokens)
        said = self.say(prompt)
        # With `tool_choice: "required"`, as smolagents asks, the gateway has begun the call.
        return said.removeprefix(BEGUN) if prompt.endswith(BEGUN) else said

    def say(self, prompt: str) -> str:
        latest = prompt.split("<|im_start|>")[-2]  # the last one begins the answer
        if "right" not in latest and "over" not in latest:
            return tool_call("guess", digit=self.digit(latest))
        if "final_answer" in prompt:  # smolagents
            return tool_call("final_answer", answer="ok")
        return "ok"

    def digit(self, latest: str) -> int:
        """The digit that wins as a first guess or after the hint; half of the time, any digit."""
        if self.generator.random() < 0.5:
            return self.generator.randint(0, 2)
        return 2 if "higher" in latest else 0 if "lower" in latest else 1


@hookimpl
def register_engines(register):
    register("weak_player", WeakPlayer)

"""Learn from an application's own traffic: record it, imitate what was good, then play the recordings.

    python examples/online/own_traffic.py                       # `tiny`, some minutes
    python examples/online/own_traffic.py --model smollm2

The application is a shop: customers ask about an article, and the model looks it up with a tool. A better model, which
here follows a script, has answered them so far, over HTTP. docs/own-traffic.md explains each step.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import web
from openai import AsyncOpenAI

from areal_sdk import Run

QUESTIONS = {
    "price": (
        *("The price?", "How much is it?", "What does it cost?", "The price, please."),
        *("Is it expensive?", "What do I pay?", "How much money?"),
    ),
    "stock": (
        *("In stock?", "How many are left?", "Do you have it?", "Any in stock?"),
        *("Is it sold out?", "Can I get one today?", "Is one left?"),
    ),
    "colour": (
        *("The colour?", "Which colour?", "What colour is it?", "Is it red or blue?"),
        *("Is it colourful?", "What does it look like?", "Is it dark?"),
    ),
}
VALUES = {
    "price": ("5", "6", "7", "9"),
    "stock": ("none", "few", "many", "one"),
    "colour": ("red", "blue", "green", "white"),
}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string"}},
            "required": ["what"],
        },
    },
}
NUM_HELD_OUT = 28
NUM_CUSTOMERS = 500
KEY = "sk-shop-0123456789abcdef"


@dataclass(frozen=True)
class Scale:
    """Settings for one model."""

    sft: tuple[str, ...]
    rl: tuple[str, ...]
    played: tuple[str, ...]
    """Settings of all commands that play episodes."""
    samples: int
    """Attempts at each conversation in an evaluation."""


SCALES = {
    "tiny": Scale(
        sft=("finetune.batch=8", "run.steps=260", "trainer.learning_rate=2e-3"),
        rl=(
            *("run.steps=10", "rollout.batch=64"),
            *("trainer.learning_rate=1e-3", "trainer.warmup_steps=0"),
        ),
        played=("rollout.max_new_tokens=64",),
        samples=4,
    ),
    "smollm2": Scale(
        sft=("finetune.batch=8", "run.steps=14", "trainer.learning_rate=2e-4"),
        rl=(
            *("run.steps=8", "rollout.batch=32"),
            *("trainer.learning_rate=2e-4", "trainer.warmup_steps=0"),
        ),
        played=("rollout.max_new_tokens=24", "engine.max_context=512"),
        samples=2,
    ),
}
EXACT = ("trainer.precision=float32", "engine.dtype=float32", "run.deterministic=true")
"""Settings of `tiny`: the same figures in every run."""


# The better model. In your application this is a provider, and nothing of this is needed.


def better_answer(messages: Sequence[dict[str, Any]], generator: random.Random) -> dict[str, Any]:
    """The scripted model looks the answer up and says it. One time in five it does not bother."""
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": f"It is {messages[-1]['content']}."}
    if generator.random() < 0.2:
        return {"role": "assistant", "content": "Soon."}
    (what,) = (topic for topic, asked in QUESTIONS.items() if messages[-1]["content"] in asked)
    function = {"name": "look", "arguments": json.dumps({"what": what})}
    call = {"id": f"call_{generator.getrandbits(32):08x}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@asynccontextmanager
async def better_model() -> AsyncIterator[str]:
    """A server of chat completions; its address."""
    generator = random.Random(0)

    async def answer(request: web.Request) -> web.Response:
        message = better_answer((await request.json())["messages"], generator)
        ended = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": ended}
        reply = {"id": f"chatcmpl-{generator.getrandbits(64):016x}", "object": "chat.completion"}
        return web.json_response({**reply, "created": 0, "model": "better", "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


# The application and its customers.


async def serve_customers(url: str, num: int) -> int:
    """Each customer asks once, and gives a thumb. The number of thumbs up."""
    generator = random.Random(1)
    thumbs = 0
    async with AsyncOpenAI(base_url=url, api_key=KEY) as client:
        for number in range(num):
            article = {what: generator.choice(values) for what, values in VALUES.items()}
            what = generator.choice([*QUESTIONS])
            question = generator.choice(QUESTIONS[what])
            session = client.with_options(api_key=f"{KEY}/customer-{number}")
            is_right = await converse(session, question, article) == f"It is {article[what]}."
            await session.post("/reward", body={"reward": float(is_right)}, cast_to=object)
            thumbs += is_right
    return thumbs


async def converse(client: AsyncOpenAI, question: str, article: dict[str, str]) -> str:
    """The shop's answer, after as many look-ups as the model wants, of four at most."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(4):
        completion = await client.chat.completions.create(
            model="better", messages=messages, tools=[TOOL]
        )
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            found = article.get(json.loads(call.function.arguments)["what"], "unknown")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    return ""


# The commands.


async def areal_sdk(*arguments: str, settings: Sequence[str] = (), cwd: Path) -> str:
    """The output of a command that has to succeed."""
    command = [*arguments, *(word for setting in settings for word in ("--set", setting))]
    print("$ areal-sdk", *command, flush=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "areal_sdk", *command), cwd=cwd, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        sys.exit(f"areal-sdk {arguments[0]} ended with {process.returncode}")
    return output.decode()


async def record(folder: Path, *, num_customers: int = NUM_CUSTOMERS) -> None:
    """Serve the customers behind `areal-sdk serve --upstream`, which keeps their conversations in runs/recorded."""
    async with better_model() as upstream:
        command = ("serve", "--upstream", upstream, "--port", "0", "--set", "run.name=recorded")
        print("$ areal-sdk", *command, flush=True)
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "areal_sdk", *command),
            cwd=folder,
            env={**os.environ, "AREAL_SDK_ADMIN_KEY": KEY},
            stdout=asyncio.subprocess.PIPE,
        )
        assert server.stdout is not None
        said = ""
        while not (at := re.search(r"at (http://\S+)", said)):
            line = (await server.stdout.readline()).decode()
            assert line, said
            said += line
        thumbs = await serve_customers(at[1], num_customers)
        print(f"{num_customers} customers, {thumbs} thumbs up", flush=True)
        server.send_signal(signal.SIGINT)
        await server.communicate()


async def choose(folder: Path) -> None:
    """The good conversations in two files. The held-out ones are drawn, since neighbours in time may be alike.

    Their questions are asked in training too, with other results: draw questions to measure new ones.
    """
    good = ("--min-score", "1", "--as", "sft", "--output", "good.jsonl", "--book", "book.jsonl")
    await areal_sdk("traces", "runs/recorded", *good, cwd=folder)
    rows = (folder / "good.jsonl").read_text().splitlines()
    random.Random(2).shuffle(rows)
    for name, chosen in (("held_out", rows[:NUM_HELD_OUT]), ("train", rows[NUM_HELD_OUT:])):
        (folder / f"{name}.jsonl").write_text("".join(f"{row}\n" for row in chosen))
    print(f"{len(rows)} good conversations", flush=True)


async def measure(name: str, model: str, *, scale: Scale, folder: Path) -> dict[str, float]:
    """Play the held-out recordings. A call that is not recorded is answered with an error, so each episode is judged."""
    output = await areal_sdk(
        *("eval", "--env", "cassette", "--tasks", "held_out.jsonl", "--reward", "cassette"),
        *("--model", model, "--samples", str(scale.samples), "--json"),
        settings=("env.cassette.unseen=answer", *scale.played),
        cwd=folder,
    )
    (found,) = json.loads(output).values()
    interval = f"[{found['success_low']:.2f}, {found['success_high']:.2f}]"
    left = found["outcome/cassette/left_recording"]
    print(f"{name}: success {found['success']:.2f} {interval}, left {left:.0%}", flush=True)
    return {"success": found["success"], "left": left}


async def main(model: str, folder: Path) -> list[dict[str, float]]:
    """Three figures: before, after imitation, and after reinforcement learning."""
    scale = SCALES[model]
    exact = EXACT if model == "tiny" else ()
    scale = replace(scale, played=("rollout.max_turns=4", *scale.played, *exact))
    measuring = {"scale": scale, "folder": folder}
    await record(folder)
    await choose(folder)
    before = await measure("before", model, **measuring)
    learnt = ("run.name=sft", *scale.sft, *exact)
    await areal_sdk("sft", "train.jsonl", "--model", model, settings=learnt, cwd=folder)
    imitated = await measure("after SFT", "runs/sft", **measuring)
    await areal_sdk(
        *("train", "--env", "cassette", "--tasks", "train.jsonl", "--reward", "cassette"),
        *("--init-from", "runs/sft", "--set", "eval.before=false", "--set", "eval.after=false"),
        settings=("run.name=rl", *scale.rl, *scale.played),
        cwd=folder,
    )
    ledger = Run(folder / "runs" / "rl").metrics()[-1]["ledger"]
    abstained = ledger["dropped"].get("abstained", 0)
    print(
        f"{abstained} of {ledger['started']} episodes left the recording and abstained", flush=True
    )
    practised = await measure("after RL", "runs/rl", **measuring)
    return [before, imitated, practised]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SCALES, default="tiny")
    parser.add_argument("--folder", type=Path, default=Path("own-traffic"))
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    asyncio.run(main(options.model, options.folder))

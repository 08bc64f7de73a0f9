"""The words of the trivial engine, and the same words ready-made in each protocol of an upstream."""

import json
from pathlib import Path

import orjson
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

NUM_TOKENS = 32


class Words:
    """The tokens of the one answer, the end of turn last, and what each adds to the text."""

    def __init__(self, model_dir: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        end = json.loads((model_dir / "config.json").read_text())["eos_token_id"]
        self.end: int = end[0] if isinstance(end, list) else end
        said = self.tokenizer.encode("The answer is not clear. " * 20).ids[: NUM_TOKENS - 1]
        self.tokens: list[int] = [*said, self.end]
        decoder = DecodeStream(skip_special_tokens=True)
        self.texts = [decoder.step(self.tokenizer, token) or "" for token in self.tokens]


class Answers:
    """Bodies of responses; a stream is one write, so that it costs its reader the least."""

    def __init__(self, words: Words) -> None:
        self.whole, self.streamed = _openai(words)
        self.vllm = _vllm(words)
        self.sglang = _sglang(words)


def _openai(words: Words) -> tuple[bytes, bytes]:
    same = {"id": "chatcmpl-0", "created": 0, "model": "m"}
    message = {"role": "assistant", "content": "".join(words.texts)}
    whole = same | {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 460, "completion_tokens": NUM_TOKENS, "total_tokens": 492},
    }
    deltas: list[dict[str, str]] = [{"content": text} for text in words.texts]
    deltas[0]["role"] = "assistant"
    choices: list[dict[str, object]] = [
        {"index": 0, "delta": delta, "finish_reason": None} for delta in deltas
    ]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunk = same | {"object": "chat.completion.chunk"}
    return orjson.dumps(whole), _events([chunk | {"choices": [choice]} for choice in choices])


def _vllm(words: Words) -> bytes:
    """The answer of vLLM's `/inference/v1/generate`."""
    logprobs = [{"token": f"token_id:{token}", "logprob": -1.0} for token in words.tokens]
    choice = {
        "index": 0,
        "token_ids": words.tokens,
        "logprobs": {"content": logprobs},
        "finish_reason": "stop",
    }
    return orjson.dumps({"request_id": "0", "choices": [choice]})


def _sglang(words: Words) -> bytes:
    """The answer of SGLang's `/generate`, as from servers that we launch: each event holds what is
    new."""
    events: list[dict[str, object]] = []
    for count, token in enumerate(words.tokens, 1):
        is_last = count == NUM_TOKENS
        meta = {
            "output_token_logprobs": [[-1.0, token, None]],
            "finish_reason": {"type": "stop", "matched": words.end} if is_last else None,
            "weight_version": "v0",
            "weight_versions": [{"version": "v0", "start": 0, "end": count}],
            "num_retractions": 0,
            "cached_tokens": 0,
        }
        events.append({"output_ids": [token], "meta_info": meta})
    return _events(events)


def _events(values: list[dict[str, object]]) -> bytes:
    return b"".join(b"data: " + orjson.dumps(value) + b"\n\n" for value in values) + (
        b"data: [DONE]\n\n"
    )

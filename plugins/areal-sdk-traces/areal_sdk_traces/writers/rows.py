"""Rows as `areal-sdk sft`, `dpo` and `train --tasks` read them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from areal_sdk import Message
from areal_sdk_traces.book import Book, Fate
from areal_sdk_traces.conversation import (
    JSON,
    LACKS,
    WEIGHT,
    Conversation,
    arguments_of,
    canonical,
    is_learnt,
    meaning,
)


def conversations(found: Iterable[Conversation], book: Book) -> Iterator[JSON]:
    for one in found:
        yield one.to_json()


def sft(found: Iterable[Conversation], book: Book) -> Iterator[JSON]:
    """A conversation a row. An answer that an earlier row teaches has weight 0."""
    for one in found:
        if reason := _unfit(one.messages):
            _leave_out(one, reason, book)
        elif not any(map(is_learnt, one.messages)):
            _leave_out(one, "the model that was recorded said nothing in it", book)
        elif not any(map(is_learnt, taught := _taught(one.messages))):
            _leave_out(one, _lack(one.messages), book)
        else:
            if unknown := _not_offered(one):
                what = "teaches calls of functions that are not among its tools"
                book.write(one.places[0], Fate.FLAW, f"{one.id} {what}: {', '.join(unknown)}")
            if len([*filter(is_learnt, taught)]) < len([*filter(is_learnt, one.messages)]):
                book.write(
                    one.places[0], Fate.FLAW, f"{one.id}: context from there: {_lack(one.messages)}"
                )
            yield {"id": one.id, "messages": taught, "tools": list(one.tools)}


def dpo(found: Iterable[Conversation], book: Book) -> Iterator[JSON]:
    """The best and the worst answer to each prompt."""
    by_prompt: dict[bytes, list[Conversation]] = {}
    for one in found:
        said = [meaning(message) for message in _prompt(one)]
        by_prompt.setdefault(canonical([said, list(one.tools)]), []).append(one)
    for of_prompt in by_prompt.values():
        scored = []
        for one in of_prompt:
            reason = _unfit(one.messages) or ("" if _answer(one) else "it has no answer")
            reason = reason or _lack([*_prompt(one), *_answer(one)])
            if reason or one.score is None:
                _leave_out(one, reason or "it has no score", book)
            else:
                scored.append(one)
        scored.sort(key=_score)
        if not scored or _score(scored[0]) == _score(scored[-1]):
            for one in scored:
                _leave_out(one, "no answer to the same prompt has another score", book)
            continue
        for one in scored[1:-1]:
            _leave_out(one, "its prompt has a better answer and a worse one", book)
        worst, best = scored[0], scored[-1]
        yield {
            "id": best.id,
            "messages": [_plain(message) for message in _prompt(best)],
            "chosen": list(_answer(best)),
            "rejected": list(_answer(worst)),
            "tools": list(best.tools),
        }


def tasks(found: Iterable[Conversation], book: Book) -> Iterator[JSON]:
    """The prompts, each once, with the best answer as a reference."""
    best: dict[bytes, Conversation] = {}
    for one in found:
        prompt = _prompt(one)
        if not prompt:
            _leave_out(one, "it has no prompt of its own", book)
            continue
        if reason := _lack(prompt):
            _leave_out(one, reason, book)
            continue
        key = canonical([meaning(message) for message in prompt])
        other = best.setdefault(key, one)
        if other is not one:
            if _score(one) > _score(other):
                best[key], one = one, other
            _leave_out(one, f"{best[key].id} has the same prompt", book)
    for one in best.values():
        yield {
            "id": one.id,
            "data": {
                "messages": [_plain(message) for message in _prompt(one)],
                "tools": list(one.tools),
                **({"answer": reference} if (reference := _reference(one)) else {}),
                "score": one.score,
            },
        }


def _prompt(one: Conversation) -> Sequence[Message]:
    return one.messages[: one.num_prompt]


def _answer(one: Conversation) -> Sequence[Message]:
    """All messages after the prompt, up to the last answer that may be learnt. Others keep their weight of 0."""
    last = max((i for i, message in enumerate(one.messages) if is_learnt(message)), default=-1)
    return one.messages[one.num_prompt : last + 1]


def _reference(one: Conversation) -> str:
    """The answer to the prompt: what the assistant said before the user went on; empty if it never got so far."""
    said = takewhile(lambda message: message["role"] != "user", _answer(one))
    texts = [m["content"] for m in said if is_learnt(m) and not m.get("tool_calls")]
    return texts[-1] if texts else ""


def _score(one: Conversation) -> float:
    return float("-inf") if one.score is None else one.score


def _plain(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != WEIGHT}


def _unfit(messages: Sequence[Message]) -> str:
    """The reason why nothing should be taught from these messages."""
    for index, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            if not isinstance(arguments_of(call["function"]["arguments"]), dict):
                return f"message {index} calls {call['function']['name']!r} with arguments that are no JSON object"
    return ""


def _taught(messages: Sequence[Message]) -> list[Message]:
    """The messages; answers after a part that was lost are context."""
    found: list[Message] = []
    lacks = False
    for message in messages:
        lacks = lacks or LACKS in message
        plain = {name: value for name, value in message.items() if name != LACKS}
        found.append({**plain, WEIGHT: 0} if lacks and is_learnt(message) else plain)
    return found


def _lack(messages: Sequence[Message]) -> str:
    """The first message that lost a part, which its answer may be about; empty if none did."""
    for index, message in enumerate(messages):
        if LACKS in message:
            return f"message {index} has lost a part, which its answer may be about"
    return ""


def _not_offered(one: Conversation) -> list[str]:
    """The functions that are called in learnt answers and are not among the tools."""
    offered = {tool["function"]["name"] for tool in one.tools}
    calls = [call for m in one.messages if is_learnt(m) for call in m.get("tool_calls") or ()]
    return sorted({call["function"]["name"] for call in calls} - offered)


def _leave_out(one: Conversation, reason: str, book: Book) -> None:
    book.write(one.places[0], Fate.NOT_WRITTEN, f"{one.id}: {reason}")

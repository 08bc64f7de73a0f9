"""Checks of a model alone: its template's markup, its tokenizer's text, and who may write tokens."""

import re
from collections.abc import Iterator, Mapping

from areal_sdk.certificate.findings import TokenFinding, failed, note, ok
from areal_sdk.certificate.model import ChatModel
from areal_sdk.gateway.errors import TemplateRefusalError
from areal_sdk.gateway.tokens.renderer import TemplateInput
from areal_sdk.types import Message, Tool

_TEXTS = {
    "emoji and accents": "na\u00efve caf\u00e9 \U0001f642\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "other scripts": "\u4f60\u597d \u043f\u0440\u0438\u0432\u0435\u0442 \u05e9\u05dc\u05d5\u05dd \u0e44\u0e17\u0e22",
    "white space": "  two,\n\n\tthen a tab  \n",
    "code": 'def f(x):\n    return {"A": [1.0, -2e5], "B": x != None}\n',
    "odd characters": "a\x00b\ufffd\u00a0\u2028c",
}

_THOUGHT_AT_END = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
_MARKUP = re.compile(r"<\|\w+\|>")
_MAX_ATTACK_TOKENS = 400

_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "MARK-DESCRIPTION",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["word"],
        },
    },
}


_PLAIN = {
    "SYSTEM": "the system message",
    "0": "the beginning of a long text",
    "150": "the middle of a long text",
    "END": "the end of a long text",
    "ANSWER": "earlier answers",
    "NEXT": "the last question",
}
_ONE = {
    "USER": "the question before a call",
    "WORD": "the arguments of a call",
    "RESULT": "the result of a call",
    "DESCRIPTION": "the description of a tool",
}
_TWO = {
    "WORD": "the arguments of the first of two calls",
    "OTHER": "the arguments of the second of two calls",
    "RESULT": "the result of the first of two calls",
    "SECOND": "the result of the second of two calls",
}
"""The meaning of each `MARK-NAME` in a conversation, by NAME."""


def probe(model: ChatModel) -> Iterator[TokenFinding]:
    """All checks that need no client's conversation."""
    yield from _asks_for_an_answer(model)
    yield from _ends_turns(model)
    yield from _beginning_of_text(model)
    yield from _vocabulary(model)
    yield from _markup(model)
    yield from _repeats(model)
    yield from _text(model)
    yield from _shows_everything(model)
    yield from _injection(model)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _calls(*words: str) -> Message:
    calls = [
        {
            "id": f"lookedup{number}",
            "type": "function",
            "function": {"name": "look_up", "arguments": f'{{"word": "{word}"}}'},
        }
        for number, word in enumerate(words)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(text: str, number: int = 0) -> Message:
    return {"role": "tool", "tool_call_id": f"lookedup{number}", "content": text}


def _asks_for_an_answer(model: ChatModel) -> Iterator[TokenFinding]:
    """Check that a new answer is asked for with the same text that stands before an earlier answer."""
    check, answer = "asks for answers", "MARK-ANSWER"
    asked = model.renderer.text(TemplateInput((_user("Hi"),)))
    history = model.renderer.text(TemplateInput((_user("Hi"), _said(answer))), asks=False)
    before, found, _ = history.partition(answer)
    if not found:
        cure = "the template must write the content of assistant messages"
        yield failed(check, "what an assistant said is not shown", cure)
        return
    plain_before, plain_asked = (_THOUGHT_AT_END.sub("", text) for text in (before, asked))
    if plain_before == plain_asked:
        yield ok(check, "an answer is asked for as it stands in history")
    elif before == asked + " ":
        yield note(check, "the template writes a space before an answer; here the model writes it")
    else:
        encode = model.tokenizer.encode
        yield failed(
            check,
            "the model is not asked for an answer the way answers stand in history",
            "correct the part of the template after `add_generation_prompt`",
            expected=model.show(encode(plain_before)),
            got=model.show(encode(plain_asked)),
        )


def _ends_turns(model: ChatModel) -> Iterator[TokenFinding]:
    check, end = "ends turns", model.renderer.end_of_turn
    if not end:
        yield failed(
            check,
            "the template writes no special token after an answer",
            "end assistant messages with the token that the model samples at its turn's end",
        )
    elif not model.stop_ids:
        yield note(check, f"turns end with {end}; no file says which tokens the model stops at")
    elif model.tokenizer.added[end] not in model.stop_ids:
        stops = " ".join(model.show(tuple(sorted(model.stop_ids))))
        yield failed(
            check,
            f"turns end with {end}, but the model stops at {stops}: it would talk on",
            f"add {model.tokenizer.added[end]} to eos_token_id in generation_config.json",
        )
    else:
        yield ok(check, f"with {end}, where the model stops")


def _beginning_of_text(model: ChatModel) -> Iterator[TokenFinding]:
    check = "beginning of text"
    bos = model.tokenizer.token_id(model.template.special_tokens.get("bos_token", ""))
    document = model.tokenizer.encode_document("text")
    if bos is None or bos in model.stop_ids:
        yield ok(check, "there is no token for it")
        return
    chat = TemplateInput((_user("Hi"), _said("Hello"), _user("Bye")))
    tokens = model.renderer.first(chat).tokens
    count = tokens.count(bos)
    marks_messages = len(chat.messages) < count <= len(chat.messages) + 2  # and a default system
    if count > 1 and (tokens[1] == bos or bos in document or not marks_messages):
        cure = "write bos_token once, before the first message"
        yield failed(check, f"a conversation holds its token {count} times", cure)
    elif count == 0 and bos in document:
        cure = "begin the template with {{ bos_token }}"
        yield failed(check, "the tokenizer puts a token before every text, chats have none", cure)
    else:
        yield ok(check, "marked once" if count else "chats have no token for it")


def _vocabulary(model: ChatModel) -> Iterator[TokenFinding]:
    highest = max([*model.tokenizer.added.values(), model.tokenizer.vocab_size - 1])
    if model.vocabulary is not None and highest >= model.vocabulary:
        yield failed(
            "vocabulary",
            f"the tokenizer has a token {highest}, the model {model.vocabulary} embeddings",
            "use the tokenizer that came with these weights, or resize the embedding",
        )
    else:
        yield ok("vocabulary", f"{highest + 1} tokens")


def _markup(model: ChatModel) -> Iterator[TokenFinding]:
    text = model.renderer.text(TemplateInput(({"role": "system", "content": "Hi"}, _user("Hi"))))
    unknown = sorted(set(_MARKUP.findall(text)) - model.tokenizer.added.keys())
    if unknown:
        yield failed(
            "markup",
            f"the template writes {', '.join(unknown)}, which the tokenizer reads as plain text",
            "use the tokenizer that belongs to this template, or add the tokens to it",
        )
    else:
        yield ok("markup", "the template's special tokens are tokens")


def _repeats(model: ChatModel) -> Iterator[TokenFinding]:
    chat = TemplateInput((_user("Hi"), _said("Hello"), _user("Bye")), (_TOOL,))
    texts = {model.renderer.text(chat) for _ in range(8)}
    if len(texts) > 1:
        cure = "siblings of one task would get different prompts: remove what is random"
        yield failed("repeats", "the same conversation is written differently each time", cure)
    else:
        yield ok("repeats", "the same conversation is the same text")


def _text(model: ChatModel) -> Iterator[TokenFinding]:
    tokenizer = model.tokenizer
    for name, text in _TEXTS.items():
        read = tokenizer.decode(tokenizer.encode_continuation(tokenizer.defuse(text)))
        if read != text:
            yield failed(
                "text",
                f"{name} do not survive: {text!r} is read as {read!r}",
                "clients would see what the tokens do not say: use the model's own tokenizer.json",
            )
            return
    yield ok("text", "survives tokens in both directions")


def _shows_everything(model: ChatModel) -> Iterator[TokenFinding]:
    """Check that the template shows every part of a conversation to the model."""
    check = "shows everything"
    long = " ".join(f"MARK-{number}" for number in range(300)) + " MARK-END"
    plain = (
        {"role": "system", "content": "MARK-SYSTEM"},
        _user(long),
        _said("MARK-ANSWER"),
        _user("MARK-NEXT"),
    )
    one = (_user("MARK-USER"), _calls("MARK-WORD"), _result("MARK-RESULT"))
    two = (
        _user("MARK-USER"),
        _calls("MARK-WORD", "MARK-OTHER"),
        _result("MARK-RESULT"),
        _result("MARK-SECOND", 1),
    )
    problems = [
        *_missing(model, TemplateInput(plain), _PLAIN),
        *_missing(model, TemplateInput(one, (_TOOL,)), _ONE),
    ]
    try:
        problems += _missing(model, TemplateInput(two, (_TOOL,)), _TWO)
    except TemplateRefusalError as exc:
        yield note(check, f"the template refuses parallel calls: {exc}")
    if problems:
        cure = "the model would answer without having seen it: correct the template"
        missing = ", ".join(dict.fromkeys(problems))
        yield failed(check, f"missing from the prompt: {missing}", cure)
    else:
        yield ok(check, "system, tools, calls, results and texts reach the model")


def _missing(model: ChatModel, chat: TemplateInput, marks: Mapping[str, str]) -> list[str]:
    text = model.renderer.text(chat)
    return [what for m, what in marks.items() if not re.search(rf"MARK-{m}(?!\d)", text)]


def _injection(model: ChatModel) -> Iterator[TokenFinding]:
    """Check that no text of a client becomes a special token, in upper case and in look-alike characters too."""
    check = "injection"
    tokens = sorted(model.tokenizer.added, key=lambda t: (not _MARKUP.fullmatch(t), len(t)))
    tokens = [token for token in tokens if token.strip()][:_MAX_ATTACK_TOKENS]
    attack = " ".join(["x", *tokens, *(t.upper() for t in tokens[:20]), *map(_wide, tokens[:20])])
    harmless = "x x"
    added = frozenset(model.tokenizer.added.values())
    broken: list[str] = []
    for place, (under_attack, calm) in {
        "user": (_plain(attack), _plain(harmless)),
        "system": (_system(attack), _system(harmless)),
        "tool result": (_with_result(attack), _with_result(harmless)),
        "tool description": (_with_tool(attack), _with_tool(harmless)),
    }.items():
        try:
            counts = [
                sum(token in added for token in model.renderer.first(chat).tokens)
                for chat in (under_attack, calm)
            ]
        except TemplateRefusalError:
            continue
        if counts[0] != counts[1]:
            broken.append(f"{place} ({counts[0] - counts[1]:+d})")
    if broken:
        yield failed(
            check,
            f"text became special tokens: {', '.join(broken)}",
            "the template must not change the characters of a text (replace, encode, filters)",
        )
    else:
        yield ok(check, f"{len(tokens)} special tokens, sent as text, stay text")


def _wide(text: str) -> str:
    """`text` in full-width characters, which Unicode's compatibility forms turn into the plain ones."""
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


def _plain(text: str) -> TemplateInput:
    return TemplateInput((_user(text),))


def _system(text: str) -> TemplateInput:
    return TemplateInput(({"role": "system", "content": text}, _user("Hi")))


def _with_result(text: str) -> TemplateInput:
    return TemplateInput((_user("Hi"), _calls("word"), _result(text)), (_TOOL,))


def _with_tool(text: str) -> TemplateInput:
    tool: Tool = {**_TOOL, "function": {**_TOOL["function"], "description": text}}
    return TemplateInput((_user("Hi"),), (tool,))

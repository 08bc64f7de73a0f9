"""Chat templates, rendered in an environment equal to the one that transformers gives them."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.errors import TemplateRefusalError
from areal_sdk.gateway.tool_calls import with_plain_tools, without_plain_tools
from areal_sdk.types import Message, Tool

_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


_FAULTS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""The errors that the code of a template may raise."""


class ChatTemplate:
    """One model's chat template: a conversation in, the text that the model reads out."""

    def __init__(
        self,
        source: str,
        *,
        tool_source: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = _environment(clock)
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        try:
            self._template = environment.from_string(source)
            self._tool_template = environment.from_string(tool_source or source)
        except TemplateError as exc:
            raise ConfigError(f"the chat template is not valid jinja: {exc}") from exc

    @classmethod
    def load(
        cls, model_dir: Path, *, clock: Callable[[], datetime] = datetime.now
    ) -> "ChatTemplate":
        """Read the template from where transformers would: chat_template.jinja, else tokenizer_config.json.

        What `store_plain_tools` put before the template is left out: the renderer weaves tools in itself.
        """
        config = _read_json(model_dir / "tokenizer_config.json")
        declared = config.get("chat_template")
        named = {"default": declared} if isinstance(declared, str) else {}
        if isinstance(declared, list):
            named = {entry["name"]: entry["template"] for entry in declared}
        file = model_dir / "chat_template.jinja"
        if file.is_file():
            named["default"] = file.read_text(encoding="utf-8")
        for extra in sorted((model_dir / "additional_chat_templates").glob("*.jinja")):
            named[extra.stem] = extra.read_text(encoding="utf-8")
        if "default" not in named:
            raise ConfigError(
                f"{model_dir} has no chat template: use an instruction-tuned model, or put a "
                "chat_template.jinja beside its tokenizer.json"
            )
        return cls(
            without_plain_tools(named["default"]),
            tool_source=named.get("tool_use"),
            special_tokens=_special_tokens(model_dir, config),
            clock=clock,
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text. `options` are the template's own, such as enable_thinking."""
        template = self._template if tools is None else self._tool_template
        variables: dict[str, Any] = {
            **(options or {}),
            **self.special_tokens,
            "messages": [_with_reasoning_names(m) for m in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return template.render(variables)
        except _FAULTS as exc:
            raise TemplateRefusalError(str(exc)) from exc


def store_plain_tools(model_dir: Path) -> None:
    """Write the tools as plain text into the chat template of `model_dir`, because the template has no place for tools.

    Other programs then render the same prompts as the renderer. A separate template for tools is removed: programs would
    prefer it to the default template.
    """
    source = ChatTemplate.load(model_dir).source
    path = model_dir / "tokenizer_config.json"
    config = _read_json(path)
    declared = config.pop("chat_template", None)
    others = model_dir / "additional_chat_templates"
    for entry in declared if isinstance(declared, list) else ():
        if entry["name"] != "default":
            others.mkdir(exist_ok=True)
            (others / f"{entry['name']}.jinja").write_text(entry["template"], encoding="utf-8")
    (others / "tool_use.jinja").unlink(missing_ok=True)
    if declared is not None:
        path.write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    (model_dir / "chat_template.jinja").write_text(with_plain_tools(source), encoding="utf-8")


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant says; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012 - jinja declares it as a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_say"), [], [], body).set_lineno(line)

    def _say(self, caller: Callable[[], str]) -> str:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that finds the keys of a message without first failing to find an attribute."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute]
        return super().getattr(obj, attribute)


_DICT_ATTRIBUTES = frozenset(dir(dict))


def _environment(clock: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` without escapes for HTML (`<`, `>` and `&`): models were trained on plain JSON."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _with_reasoning_names(message: Message) -> Message:
    """The message with its reasoning under all names that templates use."""
    for name in _REASONING_NAMES:
        reasoning = message.get(name)
        if reasoning is not None:
            return {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _special_tokens(model_dir: Path, config: Mapping[str, Any]) -> dict[str, str]:
    declared = {**_read_json(model_dir / "special_tokens_map.json"), **config}
    tokens = {name: declared[name] for name in _TOKEN_NAMES if declared.get(name) is not None}
    return {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in tokens.items()
    }


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as exc:
        raise ConfigError(f"{path} is not valid JSON: {exc}") from exc
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return document

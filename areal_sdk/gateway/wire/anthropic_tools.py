"""Tools of Anthropic's format: the client's own, and those that Anthropic defines and clients run.

A request holds only the type and the name of a tool that Anthropic defines, since Anthropic's models know
the rest. Other models do not know it, so this module describes the parameters of these tools.
"""

from collections.abc import Iterator
from typing import Any

from areal_sdk.gateway.errors import bad_request
from areal_sdk.gateway.wire.fields import Fields, check_name, parse_tool
from areal_sdk.types import Tool

Schema = dict[str, Any]


def message_tools(fields: Fields) -> Iterator[Tool]:
    for index, tool in enumerate(fields.items("tools") or ()):
        where = f"tools.{index}"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or kind == "custom":
            yield _parse_own(tool, where)
        elif kind.startswith("web_search_"):
            fields.notices.append(
                f"the tool {kind} runs at its provider: the policy is not told of it"
            )
        elif (family := kind.rpartition("_")[0]) in _CLIENT_SIDE:
            yield _parse_known(tool, family, where)
        else:
            fields.leave_out(f"{where}: tools of type {kind!r} run at Anthropic", param=where)


def _parse_own(tool: Any, where: str) -> Tool:
    name = _name(tool, where)
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise bad_request(f"{where}.input_schema is missing", param=f"{where}.input_schema")
    return _function(name, tool.get("description"), schema, where)


def _parse_known(tool: dict[str, Any], family: str, where: str) -> Tool:
    about, schema = _CLIENT_SIDE[family]
    sizes = [f"{n} is {tool[n]}" for n in _SIZES if isinstance(tool.get(n), int)]
    return _function(_name(tool, where), ". ".join([about, *sizes]) + ".", schema, where)


def _name(tool: Any, where: str) -> str:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise bad_request(f"{where}.name is missing", param=f"{where}.name")
    return check_name(tool["name"], f"{where}.name")


def _function(name: str, description: Any, schema: Schema, where: str) -> Tool:
    about = {} if description is None else {"description": description}
    function = {"name": name, **about, "parameters": schema}
    return parse_tool({"type": "function", "function": function}, where)


def _object(required: str, /, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


def _one_of(names: str, /) -> Schema:
    return {"type": "string", "enum": names.split()}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _integers(description: str) -> Schema:
    return {"type": "array", "items": {"type": "integer"}, "description": description}


_SIZES = ("display_width_px", "display_height_px", "display_number", "max_characters")
"""Fields in which a client describes its screen, or the part of a file that it shows."""

_LINE: Schema = {"type": "integer", "description": "Insert after this line; 0 is the beginning"}

_CLIENT_SIDE: dict[str, tuple[str, Schema]] = {
    "bash": (
        "Run a command in a bash session that lives on between calls",
        _object(
            "",
            command=_text("The command to run"),
            restart={"type": "boolean", "description": "Start the session anew instead"},
        ),
    ),
    "text_editor": (
        "View, create and edit files",
        _object(
            "command path",
            command=_one_of("view create str_replace insert undo_edit"),
            path=_text("Path of the file or directory"),
            file_text=_text("The whole text of the file to create"),
            old_str=_text("The text to replace, which must be in the file once"),
            new_str=_text("The text to put in its place, or to insert"),
            insert_line=_LINE,
            insert_text=_text("The text to insert"),
            view_range=_integers("The first and last line to view; -1 is the last of the file"),
        ),
    ),
    "computer": (
        "Use a screen, a keyboard and a mouse",
        _object(
            "action",
            action=_one_of(
                "key type mouse_move left_click left_click_drag right_click middle_click "
                "double_click triple_click left_mouse_down left_mouse_up scroll hold_key wait "
                "screenshot cursor_position zoom"
            ),
            coordinate=_integers("x and y in pixels: where to move, click or scroll"),
            start_coordinate=_integers("x and y in pixels: where a drag begins"),
            text=_text("What to type, or the keys to press"),
            scroll_direction=_one_of("up down left right"),
            scroll_amount={"type": "integer", "description": "How many clicks of the wheel"},
            duration={"type": "number", "description": "Seconds to wait or to hold a key"},
            region=_integers("x0, y0, x1 and y1 in pixels: what to zoom in on"),
        ),
    ),
    "memory": (
        "Keep notes in files below /memories that outlive this conversation",
        _object(
            "command",
            command=_one_of("view create str_replace insert delete rename"),
            path=_text("Path of the file or directory"),
            file_text=_text("The whole text of the file to create"),
            old_str=_text("The text to replace, which must be in the file once"),
            new_str=_text("The text to put in its place"),
            insert_line=_LINE,
            insert_text=_text("The text to insert"),
            old_path=_text("What to rename"),
            new_path=_text("Its new path"),
            view_range=_integers("The first and last line to view"),
        ),
    ),
}
"""Description and parameters of each tool, by the tool's type without its date."""

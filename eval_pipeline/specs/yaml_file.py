"""YAML files as models, with every complaint at its file and line."""

from __future__ import annotations

import difflib
import math
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.reader import ReaderError

from eval_pipeline.domain.canonical import canonical_json
from eval_pipeline.errors import SpecError

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[str | int, ...]

MAX_DEPTH = 100
_ALIAS_FACTOR = 10
_TAG = "tag:yaml.org,2002:"
_PLAIN = frozenset(_TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map"))


class _Loader(yaml.SafeLoader):
    """SafeLoader without timestamps: a date a person wrote stays the text they wrote (a time of day too, see `_scalar`)."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_TAG + "timestamp", _TAG + "value")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class YamlFile:
    """A parsed file and the line of every key and item in it. It holds what JSON and Postgres can: no NaN, no NUL, no tags."""

    def __init__(self, path: Path, shown_as: str | None = None) -> None:
        shown = shown_as or str(path)
        try:
            self._read(path.read_bytes(), shown)
        except OSError as error:
            raise SpecError(f"can't be read: {error.strerror}", where=shown) from None

    @classmethod
    def from_bytes(cls, content: bytes, shown_as: str) -> YamlFile:
        file = cls.__new__(cls)
        file._read(content, shown_as)
        return file

    def _read(self, content: bytes, shown_as: str) -> None:
        self.shown_as = shown_as
        self._lines: dict[Location, int] = {}
        self._room = _ALIAS_FACTOR * (len(content) + 1000)
        self.data = self._parse(content)

    def where(self, location: Location = ()) -> str:
        """`file:line` of the nearest enclosing thing that has a line."""
        for end in range(len(location), -1, -1):
            if location[:end] in self._lines:
                return f"{self.shown_as}:{self._lines[location[:end]]}"
        return f"{self.shown_as}:1"

    def _parse(self, content: bytes) -> Any:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self._wrong(
                f"is not UTF-8: byte {error.start} can't be decoded", content.count(b"\n", 0, error.start) + 1
            ) from None
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            return None if node is None else self._value(loader, node, ())
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise self._wrong(f"is not valid YAML: {error.problem}", line) from None
        except ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise self._wrong(f"is not valid YAML: the character {chr(error.character)!r} can't stand there", line) from None
        except RecursionError:
            raise self._wrong(f"is nested more than {MAX_DEPTH} deep", 1) from None

    def _wrong(self, what: str, line: int) -> SpecError:
        return SpecError(what, where=f"{self.shown_as}:{line}")

    def _value(self, loader: _Loader, node: yaml.Node, location: Location) -> Any:
        line = node.start_mark.line + 1
        self._lines.setdefault(location, line)
        self._room -= 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
        if self._room < 0:
            raise self._wrong("its aliases (*name) repeat so much that it is refused: write it out", line)
        if len(location) > MAX_DEPTH:
            raise self._wrong(f"is nested more than {MAX_DEPTH} deep", line)
        if node.tag not in _PLAIN:
            raise self._wrong(
                f"the tag {node.tag.replace(_TAG, '!!')} is not supported: write plain text, numbers, lists and keys", line
            )
        if isinstance(node, yaml.SequenceNode):
            return [self._value(loader, item, (*location, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(loader, node, location)
        return self._scalar(loader, node, line)

    def _scalar(self, loader: _Loader, node: yaml.Node, line: int) -> Any:
        if node.tag in (_TAG + "int", _TAG + "float") and ":" in node.value:
            return node.value  # 12:30 is a time of day, not 750
        try:
            value: Any = loader.construct_object(node)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        except ValueError as error:
            raise self._wrong(f"is not valid YAML: {error}", line) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise self._wrong(f"{node.value} is not a number that can be used", line)
        return self._text(value, line) if isinstance(value, str) else value  # pyright: ignore[reportUnknownVariableType]

    def _text(self, text: str, line: int) -> str:
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            raise self._wrong("the text holds a NUL or half a surrogate pair, which can't be stored", line)
        return text

    def _mapping(self, loader: _Loader, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._wrong("a key must be plain text", line)
            if key_node.tag == _TAG + "merge":
                raise self._wrong("merging (<<) is not supported: write the keys out", line)
            key = self._text(str(key_node.value), line)
            if key in result:
                raise self._wrong(f"the key {key!r} appears twice", line)
            self._lines[(*location, key)] = line
            result[key] = self._value(loader, value_node, (*location, key))
        return result


def parse_model(file: YamlFile, model: type[Model], item: int | None = None) -> Model:
    """The whole file, or one item of a list. Raise SpecError that lists every complaint, each with its line."""
    at: Location = () if item is None else (item,)
    data: Any = file.data if item is None else file.data[item]
    if not isinstance(data, dict):
        raise SpecError(f"must hold keys and values: {', '.join(model.model_fields)}", where=file.where(at))
    try:
        return model.model_validate_json(canonical_json(data))
    except ValidationError as error:
        details = error.errors(include_url=False)
        first, *rest = [(file.where((*at, *detail["loc"])), _message(model, detail)) for detail in details]
        more = "".join(f"\n{where}: {message}" for where, message in rest)
        raise SpecError(first[1] + more, where=first[0]) from None


def _message(model: type[BaseModel], detail: ErrorDetails) -> str:
    location = detail["loc"]
    name = ".".join(str(part) for part in location)
    if detail["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        close = difflib.get_close_matches(str(location[-1]), known, 1, 0.5)
        advice = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        return f"unknown key {str(location[-1])!r}; {advice}"
    if detail["type"] == "missing":
        return f"the key {name!r} is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] != "value_error":  # ours say themselves what was found
        message = f"{message.replace('Input should', 'must').replace('a valid array', 'a list')}, found {_short(detail['input'])}"
    return f"{name}: {message}" if name else message


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields_at(model: type[BaseModel], location: Location) -> list[str]:
    current: Any = model
    for part in location:
        found = _model_in(current)
        if found is None:
            return []
        current = found.model_fields[part].annotation if isinstance(part, str) and part in found.model_fields else current
    found = _model_in(current)
    return list(found.model_fields) if found else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `tuple[Model, ...]` or `Model | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) is not None or isinstance(annotation, types.UnionType):
        for argument in typing.get_args(annotation):
            if (found := _model_in(argument)) is not None:
                return found
    return None

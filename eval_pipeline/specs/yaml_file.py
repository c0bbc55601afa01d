"""YAML files as models, with every complaint at its file and line."""

from __future__ import annotations

import difflib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from eval_pipeline.domain.canonical import canonical_json
from eval_pipeline.errors import SpecError

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """SafeLoader without timestamps: a date a person wrote stays the text they wrote."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class YamlFile:
    """A parsed file and the line of every key and item in it."""

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
            raise SpecError(f"is not UTF-8: byte {error.start} can't be decoded", where=self.shown_as) from None
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            return None if node is None else self._value(loader, node, ())
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise SpecError(f"is not valid YAML: {error.problem}", where=f"{self.shown_as}:{line}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise SpecError(f"is not valid YAML: {error}", where=self.shown_as) from None

    def _value(self, loader: _Loader, node: yaml.Node, location: Location) -> Any:
        self._lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(loader, item, (*location, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(loader, node, location)
        return loader.construct_object(node)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def _mapping(self, loader: _Loader, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise SpecError("a key must be plain text", where=f"{self.shown_as}:{line}")
            if key in result:
                raise SpecError(f"the key {key!r} appears twice", where=f"{self.shown_as}:{line}")
            self._lines[(*location, key)] = line
            result[key] = self._value(loader, value_node, (*location, key))
        return result


def parse_model(file: YamlFile, model: type[Model]) -> Model:
    """Raise SpecError that lists every complaint, each with its line."""
    if not isinstance(file.data, dict):
        raise SpecError(f"must hold keys and values: {', '.join(model.model_fields)}", where=file.where())
    try:
        text = canonical_json(file.data)
    except (TypeError, ValueError) as error:
        raise SpecError(f"holds a value that JSON can't: {error}", where=file.where()) from None
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first, *rest = [(_place(file, detail["loc"]), _message(model, detail)) for detail in error.errors(include_url=False)]
        more = "".join(f"\n{where}: {message}" for where, message in rest)
        raise SpecError(first[1] + more, where=first[0]) from None


def _place(file: YamlFile, location: Location) -> str:
    return file.where(location)


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
    return f"{name}: {message}" if name else message


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

# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors: parse the text of a query, then judge objects."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dispatcher.local.cluster.names import label_key_faults, label_value_faults
from dispatcher.local.cluster.store import Json

FieldPaths: TypeAlias = Mapping[str, tuple[str, ...]]
"""The fields that may be selected by, and where each is found in an object."""

_TOKEN = re.compile(r"\s*(==|!=|[=!,()<>]|[^\s=!,()<>]+)")
_EQUAL = ("=", "==")
_ORDERED: dict[str, Callable[[int, int], bool]] = {">": operator.gt, "<": operator.lt}


class SelectorError(ValueError):
    """A selector that cannot be understood; the message is what the API answers."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition of a selector.

    :param key: label key, or name of the field.
    :param operator: ``in``, ``notin``, ``exists``, ``!``, ``>`` or ``<``.
    :param values: what the operator compares with.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, values: Mapping[str, str]) -> bool:
        """Judge labels or fields; ``notin`` holds where the key is absent."""
        value = values.get(self.key)
        if self.operator in {"!", "notin"}:
            return value is None or (self.operator == "notin" and value not in self.values)
        if value is None:
            return False
        if self.operator in _ORDERED:
            return value.lstrip("-").isdigit() and _ORDERED[self.operator](int(value), int(self.values[0]))
        return self.operator == "exists" or value in self.values


@dataclass(frozen=True, slots=True)
class Selector:
    """All conditions that a list or a watch puts on its objects.

    :param labels: conditions on the labels.
    :param fields: conditions on the fields that the resource can be selected by.
    :param paths: where those fields are found.
    """

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    paths: FieldPaths = field(default_factory=dict)

    @property
    def everything(self) -> bool:
        """Say whether no condition is put."""
        return not (self.labels or self.fields)

    def matches(self, obj: Json | None) -> bool:
        """Judge an object; nothing never matches."""
        if obj is None:
            return False
        labels = obj["metadata"].get("labels") or {}
        if not all(requirement.matches(labels) for requirement in self.labels):
            return False
        values = {requirement.key: _field(obj, self.paths[requirement.key]) for requirement in self.fields}
        return all(requirement.matches(values) for requirement in self.fields)


def parse(label_text: str, field_text: str, paths: FieldPaths) -> Selector:
    """Return the selector for the texts of a query; an empty text puts no condition.

    :raises SelectorError: a text cannot be understood, or names a field that cannot be selected by.
    """
    return Selector(parse_labels(label_text), parse_fields(field_text, paths), paths)


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Parse a label selector such as ``a=b,c in (d,e),!f``.

    :raises SelectorError: it cannot be understood.
    """
    if not text.strip():
        return ()
    return _LabelParser(text).parse()


def parse_fields(text: str, paths: FieldPaths) -> tuple[Requirement, ...]:
    """Parse a field selector such as ``metadata.name=a,status.phase!=Running``.

    :raises SelectorError: it cannot be understood, or names a field that is not in ``paths``.
    """
    found = []
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", term)
        if match is None:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        key, sign, value = match.groups()
        if key not in paths:
            raise SelectorError(f"field label not supported: {key}")
        found.append(Requirement(key, "in" if sign in _EQUAL else "notin", (value,)))
    return tuple(found)


def _field(obj: Json, path: tuple[str, ...]) -> str:
    value: Any = obj
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return "" if value is None else str(value)


class _LabelParser:
    """Reads a label selector token by token."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._next = 0

    def parse(self) -> tuple[Requirement, ...]:
        found = [self._requirement()]
        while (token := self._take()) == ",":
            if self._peek() == "":
                raise SelectorError("found '', expected: identifier after ','")
            found.append(self._requirement())
        if token:
            raise SelectorError(f"found '{token}', expected: ',' or 'end of string'")
        return tuple(found)

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self._take()
            return Requirement(self._key(), "!")
        key = self._key()
        token = self._peek()
        if token in {"", ","}:
            return Requirement(key, "exists")
        self._take()
        if token in _EQUAL or token == "!=":
            return Requirement(key, "notin" if token == "!=" else "in", (self._value(),))
        if token in _ORDERED:
            return Requirement(key, token, (self._number(),))
        if token in {"in", "notin"}:
            return Requirement(key, token, self._values())
        raise SelectorError(
            f"unable to parse requirement: found '{token}', expected: '=', '!=', '==', 'in', 'notin'"
        )

    def _key(self) -> str:
        key = self._take()
        if not key or not re.match(r"[^=!,()<>]", key):
            raise SelectorError(f"found '{key}', expected: !, identifier, or 'end of string'")
        if faults := label_key_faults(key):
            raise SelectorError(f'unable to parse requirement: invalid label key "{key}": {faults[0]}')
        return key

    def _value(self) -> str:
        if self._peek() in {"", ","}:
            return ""
        value = self._take()
        if faults := label_value_faults(value):
            raise SelectorError(f'unable to parse requirement: invalid label value: "{value}": {faults[0]}')
        return value

    def _number(self) -> str:
        value = self._take()
        if not re.fullmatch(r"-?\d+", value):
            raise SelectorError(
                "unable to parse requirement: for 'Gt', 'Lt' operators, the value must be an integer"
            )
        return value

    def _values(self) -> tuple[str, ...]:
        if (token := self._take()) != "(":
            raise SelectorError(f"unable to parse requirement: found '{token}' expected: '('")
        values = []
        while True:
            if self._peek() in {",", ")"}:
                values.append("")
            else:
                values.append(self._value())
            token = self._take()
            if token == ")":
                return tuple(values)
            if token != ",":
                raise SelectorError(f"unable to parse requirement: found '{token}', expected: ',' or ')'")

"""What differs between two searches, so that a refusal can say it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["changes"]


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between two tables of JSON, in words.

    >>> changes({"space": '{"tp": [1, 2]}'}, {"space": '{"tp": [1, 4]}'})
    ['tp was 1,2, is 1,4']
    """
    return list(_changes(_values(before), _values(now)))


def _values(about: Mapping[str, str]) -> dict[str, Any]:
    """What is searched, as one flat table: dotted names and their values."""
    flat: dict[str, Any] = {}

    def walk(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else key, inner)
        else:
            flat[name] = value

    for key, text in about.items():
        value = json.loads(text)
        walk("" if isinstance(value, dict) else key, value)
    return flat


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in [*before, *(name for name in now if name not in before)]:
        if before.get(name) != now.get(name):
            yield f"{name} was {_shown(before.get(name))}, is {_shown(now.get(name))}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "left out" if value is None else str(value)

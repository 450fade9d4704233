"""The address holds the whole state of a page: copy it, paste it, see the same page.

A page's state is a frozen pydantic value with a default for every field. Only what differs from
the default stands in the query, readable: `?v=1&model=llama3-8b&plan.pp=4`. A long one is packed
into `?v=1&z=...`, but for the theme, which the browser reads. Nothing is kept on the server.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any, Literal, NoReturn, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from pydantic import Field

from dashboard.limits import MOST_QUERY, MOST_STATE
from simulator.checks import Value
from simulator.errors import validated

__all__ = ["VERSION", "State", "decode", "encode"]

VERSION = 1
READABLE = 1_500  # a longer query is packed [characters]


class State(Value):
    """A page's state; every field has a default."""

    theme: Literal["light", "dark"] | None = Field(
        None, description="theme of the page; without, as the browser prefers"
    )


S = TypeVar("S", bound=State)


def encode(state: State) -> str:
    """The query of a state: empty for the default, else "?v=1&..."; `decode` reads it back.

    Raises:
        ValueError: the state is too large for an address.

    >>> class Example(State):
    ...     model: str = "gpt3-175b"
    ...     plan: dict[str, int] = {}
    >>> encode(Example(plan={"pp": 8}))
    '?v=1&plan.pp=8'
    >>> encode(Example())
    ''
    """
    table = state.model_dump(mode="json", exclude_defaults=True)
    if not table:
        return ""
    pairs = [("v", str(VERSION)), *((k, _text(v)) for k, v in _flat(table))]
    query = "?" + urlencode(pairs, quote_via=quote, safe=".,:@/")
    if len(query) > READABLE:
        theme = f"&theme={table.pop('theme')}" if "theme" in table else ""
        raw = json.dumps(table, separators=(",", ":")).encode()
        packed = base64.urlsafe_b64encode(zlib.compress(raw, 9)).decode().rstrip("=")
        query = f"?v={VERSION}{theme}&z={packed}"
        if len(raw) > MOST_STATE or len(query) > MOST_QUERY:
            raise ValueError(
                f"this page's state takes {len(query):,} characters, too many for an address, "
                f"which holds {MOST_QUERY:,}; make it smaller, or save it as a file"
            )
    return query


def decode(kind: type[S], query: str) -> S:
    """The state of a query, checked: anything that is no state of this kind is refused.

    Raises:
        ValueError: the query is too long, of another version, or describes no such state.

    >>> class Example(State):
    ...     model: str = "gpt3-175b"
    ...     plan: dict[str, int] = {}
    >>> decode(Example, "?v=1&plan.pp=8").plan
    {'pp': 8}
    """
    text = query.removeprefix("?")
    if not text:
        return kind()
    if len(text) > MOST_QUERY:
        raise ValueError(
            f"the address has {len(text):,} characters; at most {MOST_QUERY:,} are read"
        )
    pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=500)
    version = dict(pairs).get("v", "")
    if version != str(VERSION):
        raise ValueError(
            f"the address is of version {version[:20] or '(none)'}, but this page reads version "
            f"{VERSION}; open the page anew and set it up again"
        )
    given = [(name, value) for name, value in pairs if name != "v"]
    packed = [value for name, value in given if name == "z"]
    table = _nested([(name, value) for name, value in given if not packed or name == "theme"])
    if packed:
        table |= _unpacked(packed[0])
    return validated(kind, table, "address")


def _flat(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Pairs of names and values; a table inside becomes "name.key"."""
    flat: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, Mapping) and value and all("." not in key for key in value):
            flat += [(f"{name}.{key}", inner) for key, inner in value.items()]
        else:
            flat.append((name, value))
    return flat


def _nested(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, text in pairs:
        outer, dot, inner = name.partition(".")
        if not dot:
            table[outer] = _value(text)
            continue
        below = table.setdefault(outer, {})
        if not isinstance(below, dict):
            raise ValueError(f"the address gives {outer[:40]} as a value and as a table; give one")
        below[inner] = _value(text)
    return table


def _text(value: object) -> str:
    """A text as it is, unless it would be read as something else; the rest as JSON."""
    if isinstance(value, str) and _value(value) == value:
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _value(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity are no JSON


def _unpacked(packed: str) -> dict[str, Any]:
    broken = "the packed part of the address is damaged; copy the whole address again"
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        reader = zlib.decompressobj()
        data = reader.decompress(raw, MOST_STATE)
        if reader.unconsumed_tail:
            raise ValueError(f"the address unpacks to more than {MOST_STATE:,} bytes")
        table = json.loads(data, parse_constant=_refuse)
    except (binascii.Error, zlib.error, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError(broken) from None
    if not isinstance(table, dict):
        raise ValueError(broken)
    return table

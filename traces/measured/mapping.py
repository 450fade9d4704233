r"""What a range's name says: the kind of op, and its stage and microbatch where it has numbers.

Built in are PyTorch's pipeline runtime (`PP:2F0`), its GPipe class (`Forward 0`), its optimizers
and Megatron's `forward_step` and `backward_step`. A user's own names come from a TOML file:

    num_chunks = 2                       # stages on each rank, for names without a stage

    [[op]]
    name = 'stage(?P<stage>\d+)/fwd/mb(?P<microbatch>\d+)'
    kind = "F"

    [[op]]
    name = '(?P<kind>bwd|wgrad)'         # no numbers: counted in the order of the rank
    kinds = { bwd = "I", wgrad = "W" }
"""

from collections.abc import Mapping as Table
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import regex as re  # unlike the standard library's it gives up after a time

from simulator.files import parse_toml, read_bytes
from simulator.schedule import NO_MICROBATCH, OVERLAP, Kind, Op, Pair

__all__ = ["BUILT_IN", "UNKNOWN", "Mapping", "Named", "Rule", "read_mapping"]

UNKNOWN = -2  # a stage or a microbatch that the name does not give
MOST = 1 << 20  # stages or microbatches
LONGEST = 1000  # of a name that a pattern is tried on [characters]
PATIENCE = 0.5  # with one pattern and one name [s]
GROUPS = ("kind", "stage", "microbatch", "chunk")


class Named(NamedTuple):
    """What a name says; `UNKNOWN` numbers are counted later."""

    kind: Kind
    stage: int
    microbatch: int
    chunk: int = UNKNOWN  # which of its rank's stages


@dataclass(frozen=True)
class Rule:
    """A pattern and what it means; a named group overrides what the rule says."""

    name: re.Pattern[str]
    kind: Kind | None = None
    kinds: Table[str, Kind] = field(default_factory=dict)  # by the group `kind`

    def read(self, text: str) -> Named | None:
        """What a whole name says, or nothing."""
        match = _matched(self.name, text)
        if match is None:
            return None
        groups = match.groupdict()
        kind = self.kinds.get(groups["kind"]) if groups.get("kind") else self.kind
        if kind is None:
            return None
        whole = kind > Kind.W and kind not in (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B)
        number = NO_MICROBATCH if whole else UNKNOWN
        stage, microbatch, chunk = (
            _number(groups.get(name), text) for name in ("stage", "microbatch", "chunk")
        )
        return Named(kind, stage, number if microbatch == UNKNOWN else microbatch, chunk)


STEP = re.compile(r"ProfilerStep#(\d+)")


@dataclass(frozen=True)
class Mapping:
    """How the names of a run are read: the first rule that matches counts."""

    rules: tuple[Rule, ...] = ()
    num_chunks: int = 1  # stages on each rank [1]
    step: re.Pattern[str] = STEP

    def read(self, text: str) -> tuple[Named, ...]:
        """The ops that a name stands for: one, two that ran together, or none.

        >>> BUILT_IN.read("PP:2F0")
        (Named(kind=<Kind.F: 0>, stage=2, microbatch=0, chunk=-2),)
        >>> BUILT_IN.read("aten::mm")
        ()
        """
        for rule in self.rules:
            named = rule.read(text)
            if named is not None:
                return (named,)
        return _runtime(text)

    def computes(self, text: str) -> bool:
        """Whether a name stands for an op that computes."""
        return any(one.kind <= Kind.W for one in self.read(text))

    def step_of(self, text: str) -> int | None:
        """The number of the step that a range of this name is, if it is one."""
        match = _matched(self.step, text)
        if match is None:
            return None
        return _number(match.group(1) if self.step.groups else "0", text)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The match of a whole name; a pattern that tries too many ways is given up."""
    if len(text) > LONGEST:
        return None
    try:
        return pattern.fullmatch(text, timeout=PATIENCE)
    except TimeoutError:
        raise ValueError(
            f"the pattern {pattern.pattern[:60]!r} takes more than {PATIENCE:g} s to read "
            f"{text[:60]!r}; write it without a repeat inside a repeat, as in (a+)+"
        ) from None


def _runtime(text: str) -> tuple[Named, ...]:
    """PyTorch's own text, with or without its prefix."""
    word = text.removeprefix("PP:")
    try:
        ops = Pair.parse(word) if word.endswith(OVERLAP) else (Op.parse(word),)
    except ValueError:
        return ()
    if max(max(op.stage, op.microbatch) for op in ops) > MOST:
        raise ValueError(f"{text[:60]!r} has a number beyond {MOST:,}")
    return tuple(Named(op.kind, op.stage, op.microbatch) for op in ops)


def _number(text: str | None, name: str) -> int:
    if not text:
        return UNKNOWN
    if not text.isdecimal() or len(text) > 9 or int(text) > MOST:
        raise ValueError(f"{name[:60]!r} has {text[:20]!r} where a number up to {MOST:,} belongs")
    return int(text)


MEGATRON = r"(?:.*[./: ])?"
BUILT_IN = Mapping(
    (
        Rule(re.compile(r"Forward (?P<microbatch>\d+)"), Kind.F),
        Rule(re.compile(r"Backward (?P<microbatch>\d+)"), Kind.B),
        Rule(re.compile(MEGATRON + r"forward[-_](?:step|compute)"), Kind.F),
        Rule(re.compile(MEGATRON + r"backward[-_](?:step|compute)"), Kind.B),
        Rule(re.compile(r"Optimizer\.step#.*|(?:.*[./: ])?optimizer[-_]step"), Kind.OPTIMIZER),
    )
)
"""The names that need no file."""


def read_mapping(path: Path) -> Mapping:
    """A user's names, before the built-in ones.

    Raises:
        ValueError: the file cannot be read, or says something that has no meaning.
    """
    table = parse_toml(read_bytes(path), str(path))
    try:
        return _mapping(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _mapping(table: dict[str, Any]) -> Mapping:
    extra = set(table) - {"op", "num_chunks", "step"}
    if extra:
        raise ValueError(f"{min(extra)} has no meaning; use op, num_chunks and step")
    chunks = table.get("num_chunks", 1)
    if not isinstance(chunks, int) or isinstance(chunks, bool) or not 1 <= chunks <= 1024:
        raise ValueError(f"num_chunks is {chunks!r}; it must be a whole number from 1 to 1024")
    ops = table.get("op", [])
    if not isinstance(ops, list) or not all(isinstance(op, dict) for op in ops):
        raise ValueError("op is no list of tables; write each under [[op]]")
    rules = tuple(_rule(op, number) for number, op in enumerate(ops))
    step = _pattern(table["step"], "step") if "step" in table else BUILT_IN.step
    return Mapping((*rules, *BUILT_IN.rules), chunks, step)


def _rule(op: dict[str, Any], number: int) -> Rule:
    where = f"op[{number}]"
    extra = set(op) - {"name", "kind", "kinds"}
    if extra:
        raise ValueError(f"{where}.{min(extra)} has no meaning; use name, kind and kinds")
    if "name" not in op:
        raise ValueError(f"{where}.name is missing; give a regular expression")
    pattern = _pattern(op["name"], f"{where}.name")
    odd = set(pattern.groupindex) - set(GROUPS)
    if odd:
        raise ValueError(f"{where}.name has the group {min(odd)}; groups are {', '.join(GROUPS)}")
    kinds = op.get("kinds", {})
    if not isinstance(kinds, dict):
        raise ValueError(f'{where}.kinds is {kinds!r}; write a table as {{ fwd = "F" }}')
    if ("kind" in pattern.groupindex) != bool(kinds) or bool(kinds) == ("kind" in op):
        raise ValueError(f"{where} needs kind, or else a group (?P<kind>...) and kinds")
    named = {text: _kind(word, f"{where}.kinds.{text}") for text, word in kinds.items()}
    return Rule(pattern, _kind(op["kind"], f"{where}.kind") if "kind" in op else None, named)


def _kind(word: object, where: str) -> Kind:
    if not isinstance(word, str) or word not in Kind.__members__ or word == Kind.WAIT.name:
        known = " ".join(kind.name for kind in Kind if kind is not Kind.WAIT)
        raise ValueError(f"{where} is {word!r}; kinds are {known}")
    return Kind[word]


def _pattern(text: object, where: str) -> re.Pattern[str]:
    if not isinstance(text, str):
        raise ValueError(f"{where} is {text!r}; write a regular expression in quotes")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{where} is no regular expression: {error}") from None

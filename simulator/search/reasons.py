"""Why a point is dropped: the rule that it breaks, without values, so that points add up."""

import re
from collections.abc import Mapping

__all__ = ["BEATEN", "EVEN", "SAME_ROWS", "no_room", "reason"]

EVEN = "the same as the even split"
SAME_ROWS = "the same rows as another schedule's"
BEATEN = "bound: no better than a simulated plan"

_SUBJECT = re.compile(r"^([\w.]+) is [^,;]+, (?:but|and) ")
_DESCRIBED = re.compile(r"^([\w.]+) is \S+ \([^;]*\); ")
_NUMBER = re.compile(r"(?: is| =)? ?\b\d[\d,]*(?:\.\d+)?\b")


def reason(error: ValueError) -> str:
    """The rule in an error's sentence: what the subject must be, without its value or the way out.

    >>> reason(ValueError("plan.cp is 2, but its communication is not costed yet; use 1"))
    'plan.cp: its communication is not costed yet'
    """
    text = _DESCRIBED.sub(r"\1: ", str(error))
    text = _SUBJECT.sub(r"\1: ", text)
    text = re.split(r"; (?!it must)", text)[0]
    return " ".join(_NUMBER.sub("", text).split())


def no_room(parts: Mapping[str, float]) -> str:
    """What takes the most memory on the fullest rank. [bytes]

    >>> no_room({"weights": 1.0, "activations": 9.0})
    'does not fit: activations are the largest part'
    """
    return f"does not fit: {max(parts, key=lambda name: parts[name])} are the largest part"

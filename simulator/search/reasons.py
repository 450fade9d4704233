"""Why a point is dropped: the rule that it breaks, without values, so that points add up."""

import re
from collections.abc import Mapping
from functools import lru_cache

__all__ = ["BEATEN", "CROWDED", "EVEN", "SAME_ROWS", "TOO_LARGE", "no_room", "num_legal", "reason"]

EVEN = "the same as the even split"
SAME_ROWS = "the same rows as another schedule's"
BEATEN = "bound: no better than a simulated plan"
CROWDED = "plan.pp x plan.vpp: more stages than layers"
TOO_LARGE = "does not fit: weights, gradients and optimizer states alone are too large"
NO_ROOM = "does not fit: {} are the largest part"

# Sentences that say less without their values, and what is said instead.
SHORT = {
    r"plan\.(\w+) is \S+, but plan\.(\w+) is (\S+): it would have no effect": (
        r"plan.\1: no effect at plan.\2 = \3"
    ),
    r"plan\.etp is .* as when etp is left out": "plan.etp: the same as without it",
    r"plan\.etp is .* without plan\.sequence_parallel": (
        "plan.etp: whole experts need sequence_parallel at plan.tp of 2 or more"
    ),
    r".*: a stage would hold no layer": CROWDED,
    r"plan\.zero_stage is (\d) and plan\.pp is": (
        r"plan.zero_stage: a pipeline would split its gradients after every microbatch with \1"
    ),
    r"plan\.zero_stage is .* holds every stage on": (
        "plan.zero_stage: 2 and 3 need a schedule with one home for each stage"
    ),
    r"plan\.ep is .* has no experts": "plan.ep: the model has no experts",
    r"plan\.tp is .* groups would lie across nodes": "plan.tp: some groups would lie across nodes",
    r"cluster\.stragglers names rank": "cluster.stragglers: the pipeline has no such rank",
    r"plan\.activation_limit is": "plan.activation_limit: one microbatch takes more",
    r"the plan uses pp x tp": "num_gpus: tp x cp is more",
    r"the plan has .* ops": "plan.num_microbatches: more ops than are simulated",
    r"plan\.vpp is \d+, but hanayo": "plan.vpp: hanayo needs two chunks a wave",
    r"plan\.num_microbatches is .* number of rounds": (
        "plan.num_microbatches: it must be a multiple of the number of rounds"
    ),
    r"the rows put a stage on two ranks": (
        "layer_split: stages that stand on unlike ranks cannot be balanced"
    ),
}
_SUBJECT = re.compile(r"^([\w.]+(?: x [\w.]+)*) is [^,;]+, (?:but|and) ")
_DESCRIBED = re.compile(r"^([\w.]+) is \S+ \([^;]*\); ")
_VALUE = re.compile(r" = \d[\d,]*(?:\.\d+)?\b")
_NUMBER = re.compile(r"(?<![\w.-])(?:\d[\d,]+|[4-9])(?:\.\d+)?(?![\w-])")  # a rule's own are small


def reason(error: ValueError) -> str:
    """The rule in an error's sentence: what the subject must be, without its value or the way out.

    >>> reason(ValueError("plan.tp is 5, but it must divide model.vocab_size = 96; use 1 or 2"))
    'plan.tp: it must divide model.vocab_size'
    """
    return _rule(str(error))


@lru_cache(maxsize=4096)
def _rule(text: str) -> str:
    """The rule in a sentence."""
    for sentence, short in SHORT.items():
        if match := re.match(sentence, text):
            return match.expand(short)
    text = _DESCRIBED.sub(r"\1: ", text)
    text = _SUBJECT.sub(r"\1: ", text)
    text = re.split(r"; (?!it must)", text)[0]
    return " ".join(_NUMBER.sub("N", _VALUE.sub("", text)).split())


def no_room(parts: Mapping[str, float]) -> str:
    """What takes the most memory on the fullest rank. [bytes]

    >>> no_room({"weights": 1.0, "activations": 9.0})
    'does not fit: activations are the largest part'
    """
    return NO_ROOM.format(max(parts, key=lambda name: parts[name]))


def num_legal(simulated: int, dropped: Mapping[str, int]) -> int:
    """Plans that break no rule and are like no other, each once; as far as anybody has asked. [1]

    Nobody asks where the weights, gradients and optimizer states alone are too large.

    >>> num_legal(3, {"plan.tp: it must divide seq_len": 5, BEATEN: 4, TOO_LARGE: 9})
    7
    """
    return simulated + sum(points for one, points in dropped.items() if _is_of_a_plan(one))


def _is_of_a_plan(reason: str) -> bool:
    return reason == BEATEN or (reason.startswith(NO_ROOM.split("{")[0]) and reason != TOO_LARGE)

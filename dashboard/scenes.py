"""From naive to zero bubble: the steps of the story.

The closed forms are those of the papers; the page shows them beside what the simulation says of
the same numbers, so that a reader sees both where they agree and where a form no longer holds.
"""

# ruff: noqa: RUF001 - formulas have minus signs
from collections.abc import Callable

from dashboard.story import Formula, Numbers, Scene

__all__ = ["STEPS"]


def _n(value: float) -> str:
    return f"{value:g}"


def _always(_: Numbers) -> bool:
    return True


def _ratio(idle: Callable[[Numbers], float]) -> Callable[[Numbers], float]:
    """The share of an idle time in the step that it makes longer."""

    def value(n: Numbers) -> float:
        work = n.m * (n.f + n.b)
        return idle(n) / (work + idle(n))

    return value


_FLUSHED = Formula(
    over="p − 1",
    under="m + p − 1",
    over_numbers=lambda n: f"{n.p} − 1",
    under_numbers=lambda n: f"{n.m} + {n.p} − 1",
    value=lambda n: (n.p - 1) / (n.m + n.p - 1),
    holds=_always,
    where="",
)


def _zero_bubble(times: int, letters: str, holds: Callable[[Numbers], bool], where: str) -> Formula:
    """Idle (p - 1)(F + I - times W) over the step."""

    def numbers(n: Numbers) -> str:
        weight = _n(n.w) if times == 1 else f"{times} · {_n(n.w)}"
        return f"({n.p} − 1)({_n(n.f)} + {_n(n.i)} − {weight})"

    return Formula(
        over=f"(p − 1)(F + I − {letters})",
        under=f"m (F + I + W) + (p − 1)(F + I − {letters})",
        over_numbers=numbers,
        under_numbers=lambda n: f"{n.m} · {_n(n.f + n.b)} + {numbers(n)}",
        value=_ratio(lambda n: (n.p - 1) * (n.f + n.i - times * n.w)),
        holds=holds,
        where=where,
        of="span",
    )


STEPS = (
    Scene(
        name="naive",
        title="One rank works, the others wait",
        schedule="naive",
        story=(
            "A model too large for one GPU is cut into p stages, one on each rank. A microbatch "
            "goes forward through all stages, then backward through all of them, and only then "
            "the next one starts.",
            "At any moment a single rank works. More ranks make the model fit; they make nothing "
            "faster.",
        ),
        formula=Formula(
            over="p − 1",
            under="p",
            over_numbers=lambda n: f"{n.p} − 1",
            under_numbers=lambda n: f"{n.p}",
            value=lambda n: (n.p - 1) / n.p,
            holds=_always,
            where="",
        ),
        memory="1 microbatch",
        question="Double the microbatches. What happens to the share of idle time?",
        answer="Nothing: every microbatch leaves p − 1 of p ranks idle while it passes. Only "
        "working on several microbatches at once can help.",
        source="Huang et al., GPipe, NeurIPS 2019, Figure 2b",
    ),
    Scene(
        name="gpipe",
        title="GPipe fills the pipe",
        schedule="gpipe",
        story=(
            "Nothing forbids the second microbatch to start while the first is on its way. Send "
            "all m forwards in, one behind the other, then all backwards.",
            "The pipe has to fill and to drain: p − 1 slots on every rank, however many "
            "microbatches follow. So many microbatches make the idle share small, but each one's "
            "activations wait for its backward: memory grows with m.",
        ),
        formula=_FLUSHED,
        memory="m microbatches",
        question="How many microbatches do 4 ranks need for less than 10 % of idle time?",
        answer="(p − 1) / (m + p − 1) < 0.1 asks for m > 9 (p − 1) = 27 microbatches, so 28: the "
        "share is then 3/31, 9.7 %. Move m to 28 and look.",
        source="Huang et al., GPipe, NeurIPS 2019, Figure 2c",
    ),
    Scene(
        name="1f1b",
        title="1F1B: the same time, far less memory",
        schedule="1f1b",
        story=(
            "As soon as a backward can run, run it: after a short warm-up each rank alternates one "
            "forward and one backward. A backward frees the activations of its microbatch.",
            "The idle time is the same as GPipe's, but a rank holds at most p microbatches "
            "instead of m. That is why every large training run starts from 1F1B.",
        ),
        formula=_FLUSHED,
        memory="min(m, p) microbatches",
        question="Which rank holds the most activations, and which the fewest?",
        answer="Rank r holds at most p − r microbatches: the first rank waits longest for its "
        "first backward, and the last one turns each forward around at once.",
        source="Narayanan et al., PipeDream, SOSP 2019; Megatron-LM, SC 2021, Figure 4",
    ),
    Scene(
        name="interleaved",
        title="Interleaving: shorter stages fill the pipe sooner",
        schedule="interleaved",
        chunks=2,
        story=(
            "Give each rank v thin slices of the model instead of one thick one: ranks 0 to p − 1 "
            "hold stages 0 to p − 1, and then stages p to 2p − 1. Here v = 2; the second chunk is "
            "drawn lighter.",
            "A slot is now v times shorter, so filling and draining cost 1/v. The price: v times "
            "as many messages, and some more memory.",
        ),
        formula=Formula(
            over="p − 1",
            under="v m + p − 1",
            over_numbers=lambda n: f"{n.p} − 1",
            under_numbers=lambda n: f"2 · {n.m} + {n.p} − 1",
            value=lambda n: (n.p - 1) / (2 * n.m + n.p - 1),
            holds=lambda n: n.m % n.p == 0,
            where="m is a multiple of p",
        ),
        memory="p + (p − 1)/v microbatches",
        question="Megatron-LM asks for m to be a multiple of p. Why?",
        answer="A rank takes p microbatches through its first chunk, then the same p through its "
        "second: by then the first of them has come around the ring. With a remainder some rank "
        "would wait for a microbatch that is still on its way.",
        source="Narayanan et al., Megatron-LM, SC 2021, Section 2.2",
    ),
    Scene(
        name="zb-h1",
        title="Split the backward: ZB-H1",
        schedule="zb-h1",
        story=(
            "A backward does two things: the gradient for its input, I, which the rank before is "
            "waiting for, and the gradient for its weights, W, which nobody waits for before the "
            "step ends.",
            "Run I at once and keep W for later, to fill what would be idle. With equal times a "
            "third of the bubble is left, and memory stays that of 1F1B.",
        ),
        formula=_zero_bubble(
            1, "W", lambda n: n.m >= n.p and min(n.f, n.i) >= n.w, "m ≥ p, F ≥ W and I ≥ W"
        ),
        memory="p microbatches",
        question="Make I longer, as attention does. Why does the bubble grow?",
        answer="W is what fills the gaps, and the chain of I is what makes them: with F + I − W "
        "larger, each of the p − 1 steps up the chain leaves a larger hole.",
        source="Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, Section 2",
    ),
    Scene(
        name="zb-h2",
        title="No bubble at all, for twice the memory: ZB-H2",
        schedule="zb-h2",
        story=(
            "Add more forwards before the first backward: the warm-up's hole is filled with work. "
            "Ranks then end one after the other, as they started, and if the optimizer step needs "
            "no common barrier, the next step starts in the same stagger.",
            "So the figure that counts is the idle time inside the longest span of a single rank. "
            "With F = I = W it is zero, but the first rank holds 2p − 1 microbatches.",
        ),
        formula=_zero_bubble(
            2,
            "2W",
            lambda n: n.m >= 2 * n.p - 1 and min(n.f, n.i) >= n.w,
            "m ≥ 2p − 1, F ≥ W and I ≥ W",
        ),
        memory="2p − 1 microbatches",
        question="The drawing still shows hatched areas. Why is the bubble called zero?",
        answer="They lie before a rank's first op and after its last: the ranks' spans are "
        "shifted against each other, and the next step's ops fill the corners. Inside every span "
        "there is no hole.",
        source="Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, Section 2",
    ),
    Scene(
        name="zb-v",
        title="Fold the pipe: zero bubble at the memory of 1F1B",
        schedule="zb-v",
        chunks=2,
        story=(
            "Lay the stages as a V: down the ranks with the first half of the model, and back up "
            "with the second. Rank 0 then holds both the first stage, whose activations live "
            "longest, and the last, whose activations live shortest.",
            "Every rank carries the same load of memory, p microbatches as in 1F1B, and that is "
            "enough for zero bubble where F = I = W.",
        ),
        formula=Formula(
            over="0",
            under="m (F + I + W)",
            over_numbers=lambda _: "0",
            under_numbers=lambda n: f"{n.m} · {_n(n.f + n.b)}",
            value=lambda _: 0.0,
            holds=lambda n: n.is_even and n.m >= 2 * n.p,
            where="F = I = W and m ≥ 2p",
            of="span",
        ),
        memory="p microbatches, on every rank alike",
        question="On which rank is the loss computed, and what does that save?",
        answer="On rank 0, which holds the last stage too: the turn from forward to backward "
        "happens there, so rank 0's first backward starts early and frees memory early.",
        source="Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024",
    ),
    Scene(
        name="dualpipe",
        title="DualPipe feeds the pipe from both ends",
        schedule="dualpipe",
        story=(
            "Hold every stage twice, and let half of the microbatches start at the last rank: "
            "their forwards meet the others' backwards. A forward and a backward that run together "
            "can hide each other's communication, which mixture-of-experts models need.",
            "In the drawing such a pair shares a row. The price is a second copy of the weights.",
        ),
        formula=Formula(
            over="(p/2 − 1)(F&B + B − 3W)",
            under="m (F + B) + (p/2 − 1)(F&B + B − 3W)",
            over_numbers=lambda n: f"({n.p}/2 − 1)({_n(n.f + n.b)} + {_n(n.b)} − 3 · {_n(n.w)})",
            under_numbers=lambda n: (
                f"{n.m} · {_n(n.f + n.b)} + "
                f"({n.p}/2 − 1)({_n(n.f + n.b)} + {_n(n.b)} − 3 · {_n(n.w)})"
            ),
            value=_ratio(lambda n: (n.p / 2 - 1) * (n.f + 2 * n.b - 3 * n.w)),
            holds=lambda n: n.is_even,
            where="F = I = W, with B = I + W and a pair as long as both",
        ),
        memory="p + 1 microbatches, and two copies of the weights",
        question="When is a second copy of the weights a small price?",
        answer="When most weights are experts spread over many GPUs: a rank's own share of them is "
        "small, while its activations are large.",
        source="DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, Table 2 and Figure 5",
    ),
)

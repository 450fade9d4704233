"""Good orders without a programme: a greedy constructor, then moves on the critical path."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.optimal.problem import F, I, Problem, W, Words, fits, peak, play

__all__ = ["better_rules", "better_words", "construct", "one_at_a_time"]


@dataclass(frozen=True)
class Rules:
    """What a rank of the greedy constructor does, one entry a rank."""

    most: tuple[int, ...]  # microbatches between F and I at once [1]
    patience: tuple[float, ...]  # how long a rank waits before it fills with W [s]
    forward_first: tuple[bool, ...]


def one_at_a_time(problem: Problem) -> Words:
    """Each microbatch alone: slow, and within every limit that can be met."""
    words = []
    for held in problem.stages:
        back = [symbol for s in reversed(held) for symbol in (3 * s + I, 3 * s + W)]
        words.append(([3 * s + F for s in held] + back) * problem.num_microbatches)
    return words


def construct(problem: Problem, rules: Rules) -> Words | None:
    """Play forward in time: each rank runs what it can, I or F before W; nothing if that hangs."""
    source, delay, seconds, m = (
        problem.source,
        problem.delay,
        problem.seconds,
        problem.num_microbatches,
    )
    ranks = problem.num_ranks
    done: list[list[float]] = [[] for _ in seconds]
    free, level, words = [0.0] * ranks, [0.0] * ranks, [[] for _ in range(ranks)]  # type: ignore[var-annotated]
    whole = [sum(problem.gains[3 * s] for s in held) for held in problem.stages]
    grows = [
        max(0.0, problem.transient[s], problem.gains[3 * s + I]) for s in range(problem.num_stages)
    ]
    spare = [max(grows[s] for s in held) for held in problem.stages]
    room = [limit * (1 + 1e-12) for limit in problem.limit]

    def choose(rank: int) -> tuple[float, int, int] | None:
        """When, how eagerly and what the rank runs next, as far as is known."""
        best: tuple[float, int, int] | None = None
        held = problem.stages[rank]
        for stage in held:
            for kind in (F, I, W):
                symbol = 3 * stage + kind
                k = len(done[symbol])
                if k == m:
                    continue
                origin, when = source[symbol], free[rank]
                if origin >= 0:
                    if len(done[origin]) <= k:
                        continue
                    when = max(when, done[origin][k] + delay[symbol])
                eager = 1
                if kind == W:
                    when, eager = when + rules.patience[rank], 3
                elif kind == F:
                    if stage == held[0] and (
                        k - len(done[3 * stage + I]) >= rules.most[rank]
                        or level[rank] + whole[rank] + spare[rank] > room[rank]
                    ):
                        continue
                    eager = 0 if rules.forward_first[rank] else 2
                elif len(done[3 * stage + F]) <= k or level[rank] + grows[stage] > room[rank]:
                    continue
                if best is None or (when, eager, -stage) < (best[0], best[1], -(best[2] // 3)):
                    best = (when, eager, symbol)
        return best

    plans = [choose(rank) for rank in range(ranks)]
    for _ in range(len(seconds) * m):
        chosen, rank = min(
            ((plan, rank) for rank, plan in enumerate(plans) if plan is not None),
            default=(None, -1),
        )
        if chosen is None:
            return None
        when, _, symbol = chosen
        stage, kind = divmod(symbol, 3)
        if kind == W:
            when -= rules.patience[rank]
        free[rank] = when + seconds[symbol]
        done[symbol].append(free[rank])
        words[rank].append(symbol)
        if kind == F:
            level[rank] += whole[rank] if stage == problem.stages[rank][0] else 0.0
        else:
            level[rank] += problem.gains[symbol]
        touched = {rank}
        if kind == F and stage + 1 < problem.num_stages:
            touched.add(problem.home[stage + 1])
        if kind == I and stage:
            touched.add(problem.home[stage - 1])
        for other in touched:
            plans[other] = choose(other)
    return words


def better_rules(problem: Problem, tries: int, seed: int = 0) -> Iterator[Words | None]:
    """Climb in the greedy constructor's rules; each better order, or nothing at the other tries."""
    draw = random.Random(seed)  # noqa: S311
    ranks, m = problem.num_ranks, problem.num_microbatches
    fill = [max(problem.seconds[3 * s + W] for s in held) for held in problem.stages]
    best: float | None = None
    at: Rules | None = None
    starts = [
        Rules(
            tuple(max(1, min(m, round(share * (ranks - r) + more))) for r in range(ranks)),
            tuple(wait * w for w in fill),
            (False,) * ranks,
        )
        for share, more in ((1, 0), (2, -1), (2, 0), (3, 0), (0, m))
        for wait in (0.0, 0.5)
    ]
    for turn in range(tries):
        if turn < len(starts):
            rules = starts[turn]
        else:
            assert at is not None
            rules = _other(at, draw, m, fill)
        words = construct(problem, rules)
        if words is None or not fits(problem, words):
            at = at or rules
            yield None
            continue
        played = play(problem, words)
        assert played is not None
        if best is None or played.energy <= best:
            best, at = played.energy, rules
            yield words
        else:
            yield None


def _other(rules: Rules, draw: random.Random, m: int, fill: list[float]) -> Rules:
    """The rules with one or two ranks changed."""
    most, patience = list(rules.most), list(rules.patience)
    forward_first = list(rules.forward_first)
    first = draw.randrange(len(most))
    for rank in range(first, min(len(most), first + draw.choice((1, 1, 2, len(most))))):
        what = draw.randrange(3)
        if what == 0:
            most[rank] = max(1, min(m, most[rank] + draw.choice((-2, -1, 1, 2))))
        elif what == 1:
            patience[rank] = draw.choice((0.0, 0.1, 0.25, 0.5, 0.75, 1.0)) * fill[rank]
        else:
            forward_first[rank] = not forward_first[rank]
    return replace(
        rules, most=tuple(most), patience=tuple(patience), forward_first=tuple(forward_first)
    )


def better_words(
    problem: Problem, words: Words, tries: int, seed: int = 0
) -> Iterator[Words | None]:
    """Move ops of the critical path, late acceptance; each better order, or nothing."""
    draw = random.Random(seed)  # noqa: S311
    played = play(problem, words)
    assert played is not None
    current, energy, best = [list(word) for word in words], played.energy, played.key
    late = [energy] * 40
    blocks = _critical(problem, current, played.ends)
    for turn in range(tries):
        if turn % 64 == 0:
            yield None
        if draw.random() < 0.8 and blocks:
            rank, begin, end = draw.choice(blocks)
            at = draw.randrange(begin, end)
        else:
            rank = draw.randrange(len(current))
            at = draw.randrange(len(current[rank]))
        step = draw.choice((-1, 1))
        word = _moved(current[rank], at, step, draw.choice((1, 1, 2, 3, 5, 8, 13, 21)))
        if word is None or peak(problem, word) > problem.limit[rank] * (1 + 1e-9):
            continue
        before, current[rank] = current[rank], word
        played = play(problem, current)
        if played is None or (played.energy > energy and played.energy > late[turn % len(late)]):
            current[rank] = before
            continue
        energy = played.energy
        late[turn % len(late)] = energy
        blocks = _critical(problem, current, played.ends)
        if played.key < best:
            best = played.key
            yield [list(word) for word in current]


def _moved(word: list[int], at: int, step: int, most: int) -> list[int] | None:
    """The word with one op at most so many places on, as far as its rank's own needs let it."""
    symbol = word[at]
    kind, k = symbol % 3, word[:at].count(symbol)
    # what must not be passed: to the left, what it needs; to the right, what needs it
    other = symbol + step
    inside = (kind > F) if step < 0 else (kind < W)
    between = -1
    if inside:
        between = word[:at].count(other) - (k + 1) if step < 0 else k - word[:at].count(other)
    to = at
    while abs(to - at) < most and 0 <= to + step < len(word):
        passed = word[to + step]
        if passed == symbol:
            break
        if inside and passed == other:
            if between == 0:
                break
            between -= 1
        to += step
    if to == at:
        return None
    new = list(word)
    new.insert(to, new.pop(at))
    return new


def _critical(
    problem: Problem, words: Words, ends: list[list[float]]
) -> list[tuple[int, int, int]]:
    """Runs of ops on one rank, without idle, on a path that decides the objective."""
    last = [max(ends[s][-1] for s in set(word)) for word in words]
    rank = max(range(len(words)), key=lambda r: last[r] - problem.offset[r])
    place: list[list[int]] = [[] for _ in problem.seconds]
    for word in words:
        for i, s in enumerate(word):
            place[s].append(i)
    count = [0] * len(problem.seconds)
    which: list[list[int]] = []
    for word in words:
        row = []
        for s in word:
            row.append(count[s])
            count[s] += 1
        which.append(row)
    at, end, blocks = len(words[rank]) - 1, len(words[rank]), []
    while True:
        symbol = words[rank][at]
        k, origin = which[rank][at], problem.source[symbol]
        free = ends[words[rank][at - 1]][which[rank][at - 1]] if at else 0.0
        ready = ends[origin][k] + problem.delay[symbol] if origin >= 0 else 0.0
        if at and free >= ready:
            at -= 1
            continue
        if end - at > 1:
            blocks.append((rank, at, end))
        if origin < 0:
            return blocks
        rank, at = problem.home[origin // 3], place[origin][k]
        end = at + 1

"""What no order can beat: earliest starts, least times to the end, and a bound by counting."""

from simulator.optimal.problem import F, I, Problem

__all__ = ["heads", "lower_bound", "tails"]


def lower_bound(problem: Problem) -> float:
    """The objective of every order is at least this, by counting. [s]

    A rank's work and its unavoidable idle: until the j-th I has run, memory admits only so many F,
    and that I cannot start before its message can be there; and while the last microbatch is away,
    from its F to its I, memory has left only so much to do.
    """
    head = heads(problem)
    m, best = problem.num_microbatches, 0.0
    for rank, held in enumerate(problem.stages):
        idle = _idle(problem, held[0], head) if len(held) == 1 else 0.0
        end = problem.first[rank] + problem.work[rank] + idle
        weights = [3 * s + 2 for s in held]
        back = max(head[w][m - 1] + problem.seconds[w] for w in weights)
        best = max(best, max(end, back) - problem.offset[rank])
    return best


def _idle(problem: Problem, stage: int, head: list[list[float]]) -> float:
    """Least idle of a rank that holds this stage alone. [s]"""
    f, i, w = problem.seconds[3 * stage : 3 * stage + 3]
    m, rank = problem.num_microbatches, problem.home[stage]
    room = _room(problem, rank, stage)
    before = [
        head[3 * stage + I][j] - problem.first[rank] - min(m, j + room) * f - j * (i + w)
        for j in range(m)
    ]
    away = max(0.0, _trip(problem, stage) - f - _left(problem, rank, stage))
    # the last F stands behind the j-th I if memory does not admit it earlier
    both = [early + away for j, early in enumerate(before) if j + room < m]
    return max(0.0, away, *before, *both)


def _trip(problem: Problem, stage: int) -> float:
    """Least time from the start of a microbatch's F to the start of its I. [s]"""
    below = problem.seconds[3 * stage :]
    hops = sum(problem.hop[stage:])
    return sum(below[0::3]) + sum(below[4::3]) + 2 * hops


def _left(problem: Problem, rank: int, stage: int) -> float:
    """Most work on other microbatches that memory can leave for after the last F. [s]"""
    i, w = problem.seconds[3 * stage + 1 : 3 * stage + 3]
    kept, by_i, by_w = (abs(problem.gains[3 * stage]), *problem.gains[3 * stage + 1 :][:2])
    others = problem.num_microbatches - 1
    space = problem.limit[rank] * (1 + 1e-9) - kept
    most = 0.0
    for inputs in range(others + 1):  # I that are left; as many W at least
        rest = space + by_i * inputs
        weights = others if by_w >= 0 else min(others, int(max(-1.0, min(rest / -by_w, 1e9))))
        if weights >= inputs:
            most = max(most, inputs * i + weights * w)
    return most


def _room(problem: Problem, rank: int, stage: int) -> int:
    """Most microbatches in memory when none has run its I. [1]"""
    kept, limit = problem.gains[3 * stage], problem.limit[rank] * (1 + 1e-9)
    m = problem.num_microbatches
    return m if kept <= 0 or kept * m <= limit else int(limit // kept)


def heads(problem: Problem) -> list[list[float]]:
    """Earliest start of every op, by symbol and microbatch. [s]"""
    m, seconds = problem.num_microbatches, problem.seconds
    start = [[0.0] * m for _ in seconds]
    forwards = [3 * s + F for s in range(problem.num_stages)]
    backwards = [3 * s + 1 for s in reversed(range(problem.num_stages))]
    for symbol in forwards + backwards + [3 * s + 2 for s in range(problem.num_stages)]:
        origin, stage = problem.source[symbol], symbol // 3
        rank, f, i = problem.home[stage], seconds[3 * stage], seconds[3 * stage + 1]
        for k in range(m):
            before = k * seconds[symbol]  # that this rank must have done by then
            if symbol % 3:
                before = (k + 1) * f + k * i
            if symbol % 3 == 2:
                before += i + k * seconds[symbol]
            at = problem.first[rank] + before
            if origin >= 0:
                at = max(at, start[origin][k] + seconds[origin] + problem.delay[symbol])
            if k:
                at = max(at, start[symbol][k - 1] + seconds[symbol])
            start[symbol][k] = at
    return start


def tails(problem: Problem) -> list[list[float]]:
    """Least time from every op's start to its rank's, or a later one's, counted end. [s]

    Measured so that start + tail - 0 is at most the objective: offsets are taken off.
    """
    m, seconds = problem.num_microbatches, problem.seconds
    tail = [[0.0] * m for _ in seconds]
    weights = [3 * s + 2 for s in range(problem.num_stages)]
    backwards = [3 * s + 1 for s in range(problem.num_stages)]
    forwards = [3 * s for s in reversed(range(problem.num_stages))]
    users: list[list[int]] = [[] for _ in seconds]
    for symbol, origin in enumerate(problem.source):
        if origin >= 0:
            users[origin].append(symbol)
    for symbol in weights + backwards + forwards:
        stage = symbol // 3
        offset = problem.offset[problem.home[stage]]
        f, i, w = seconds[3 * stage : 3 * stage + 3]
        for k in reversed(range(m)):
            left = m - k
            after = {0: left * (f + i + w), 1: left * (i + w), 2: left * w}[symbol % 3]
            least = after - offset
            for user in users[symbol]:
                least = max(least, seconds[symbol] + problem.delay[user] + tail[user][k])
            if k + 1 < m:
                least = max(least, seconds[symbol] + tail[symbol][k + 1])
            tail[symbol][k] = least
    return tail

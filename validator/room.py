"""What the cuts of a session's plays take of a device's memory when all of them are kept."""

from validator.lone import LONE_REPEATS
from validator.session import WIDTHS, Session

__all__ = ["kept_bytes"]


def kept_bytes(session: Session, rank: int) -> float:
    """What the cuts of all plays hold on a rank's device, side by side. [bytes]

    Weights, gradients and two moments of each cut, and the receive buffers that PyTorch's runtime
    makes for every microbatch of every play and of its lone ops.
    """
    cuts = {play.cut for play in session.plays}
    lone = {(play.cut, play.splits_backward) for play in session.plays}
    whole = len(cuts) * 4 * WIDTHS[session.dtype] * session.model.num_parameters

    def buffers(held: tuple[tuple[int, ...], ...], each: int) -> float:
        stages = sum(map(len, held))
        ends = sum((s > 0) + (s < stages - 1) for s in held[each])
        return float(ends * session.boundary_bytes)

    ranks = range(session.num_ranks) if session.transfers == "staged" else (rank,)
    received = sum(
        sum(session.num_microbatches * buffers(play.held, each) for play in session.plays)
        + sum(LONE_REPEATS * buffers(held, each) for (_, held), _ in lone)
        for each in ranks
    )
    return whole * len(ranks) / session.num_ranks + received

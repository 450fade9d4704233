"""The value that carries seconds and bytes of every op, and the textbook's equal stages."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.schedule import Kind

__all__ = ["Costs", "uniform"]

Column = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Costs:
    """Seconds and bytes of every op, by stage. Arrays have shape (num_stages,) unless stated.

    Times and sizes are of one microbatch on one GPU; a tensor-parallel group's GPUs are alike.
    """

    seconds: Column  # shape (num_kinds, num_stages): duration of an op [s]
    tensor_seconds: Column  # same shape: exposed communication within it, of tp, cp, ep, ZeRO [s]
    recompute_seconds: Column  # recomputed operators within the backward, without communication [s]
    boundary_bytes: Column  # sent by one GPU to the next stage's, and as much back [bytes]
    boundary_gather: (
        Column  # after a message has arrived: all-gather with scatter/gather, stall [s]
    )
    reduce_bytes: Column  # gradients that one GPU reduces over dp in one step [bytes]
    unshard_bytes: Column  # weights that one GPU gathers over dp in one step [bytes]
    weight_bytes: Column  # [bytes]
    gradient_bytes: Column  # [bytes]
    optimizer_bytes: Column  # master weights and moments [bytes]
    activation_bytes: Column  # kept from F to the end of the backward, or of W [bytes]
    input_grad_bytes: Column  # the part of activation_bytes that I frees, or < 0 [bytes]
    transient_bytes: Column  # live only while a backward runs: recomputed activations [bytes]
    pair_time: (
        Column  # an overlapped pair's time over the sum of its ops', by the first's stage [1]
    )
    fixed_bytes: Column = field(default_factory=lambda: np.zeros(1))  # shape (1,): what a rank
    # holds besides: context, communication buffers, gathered weights [bytes]
    slice_time: Column = field(default_factory=lambda: np.ones(1))  # shape (num_slices,): part of
    # a microbatch's time that each of its slices takes [1]
    slice_tokens: Column = field(default_factory=lambda: np.ones(1))  # same, of its bytes [1]

    @property
    def num_stages(self) -> int:
        """Model stages. [1]"""
        return int(self.seconds.shape[1])

    def share_of_time(self, microbatch: NDArray[np.integer]) -> Column:
        """What of a microbatch's time each op takes; all of it if it has none, as OPTIMIZER. [1]"""
        return np.where(microbatch < 0, 1.0, self.slice_time[microbatch % len(self.slice_time)])

    def share_of_tokens(self, microbatch: NDArray[np.integer]) -> Column:
        """What of a microbatch's bytes each op moves or holds. [1]"""
        return np.where(microbatch < 0, 1.0, self.slice_tokens[microbatch % len(self.slice_tokens)])


MOST_SECONDS = 1e12  # of a uniform op


def uniform(
    num_stages: int,
    forward: float,
    backward: float,
    weight_grad: float | None = None,
    weight_memory: float = 1.0,
) -> Costs:
    """Equal stages, free communication, one unit of activation memory for each op in flight.

    Args:
        num_stages: model stages. [1]
        forward: one microbatch's forward through one stage. [s]
        backward: its full backward. [s]
        weight_grad: the part of it that is W when split; half when left out. [s]
        weight_memory: the part of the activation memory that only W frees, M_W / M_B. [1]

    >>> uniform(4, 1.0, 2.0).seconds[Kind.B]
    array([2., 2., 2., 2.])
    """
    weight_grad = backward / 2 if weight_grad is None else weight_grad
    if not (0 < forward < MOST_SECONDS and 0 < backward < MOST_SECONDS):
        raise ValueError(
            f"uniform costs are {forward:g} and {backward:g} s; forward and backward must be "
            f"positive, and less than {MOST_SECONDS:g}"
        )
    if not 0 < weight_grad < backward:
        raise ValueError(
            f"the weight gradient takes {weight_grad:g} s; it must be a part of the backward, "
            f"{backward:g} s"
        )
    if not 0 <= weight_memory <= 1:
        raise ValueError(f"weight_memory is {weight_memory:g}; it must be a share, 0 to 1")
    seconds = np.zeros((len(Kind), num_stages))
    seconds[Kind.F] = forward
    seconds[Kind.B] = backward
    seconds[Kind.I] = backward - weight_grad
    seconds[Kind.W] = weight_grad
    nothing = np.zeros(num_stages)
    return Costs(
        seconds=seconds,
        tensor_seconds=np.zeros_like(seconds),
        recompute_seconds=nothing,
        boundary_bytes=nothing,
        boundary_gather=nothing,
        reduce_bytes=nothing,
        unshard_bytes=nothing,
        weight_bytes=nothing,
        gradient_bytes=nothing,
        optimizer_bytes=nothing,
        activation_bytes=np.ones(num_stages),
        input_grad_bytes=np.full(num_stages, 1.0 - weight_memory),
        transient_bytes=nothing,
        pair_time=np.ones(num_stages),
    )

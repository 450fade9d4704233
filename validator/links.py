"""Sends of several sizes between two ranks: what latency and bandwidth are fitted to."""

import time

import torch
from torch import distributed

__all__ = ["SIZES", "exchange", "message_sizes"]

SIZES = tuple(4**k for k in range(5, 13))  # 1 KiB to 16 MiB [bytes]
REPEATS = 30  # of each size; small sends are noisy [1]


def message_sizes(boundary_bytes: int) -> tuple[int, ...]:
    """Sizes up to four times a boundary tensor, that one among them. [bytes]

    >>> message_sizes(3000)
    (1024, 3000, 4096)
    """
    return tuple(sorted({boundary_bytes, *(n for n in SIZES if n <= 4 * boundary_bytes)}))


def exchange(
    source: int,
    target: int,
    rank: int,
    sizes: tuple[int, ...],
    device: torch.device,
) -> list[tuple[int, float]]:
    """Round trips between two ranks, halved: (bytes, seconds) of one way, on the source.

    Both ranks call it, alone on the links. Messages lie in the memory of `device`. Staged ones are
    timed in the host's: what copies them to and from the GPU is part of posting and of the ops.
    """
    found = []
    for size in sizes:
        tensor = torch.zeros(size, dtype=torch.uint8, device=device)
        for repeat in range(REPEATS):
            if device.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for sender in (source, target):
                if rank == sender:
                    distributed.send(tensor, target if rank == source else source)
                else:
                    distributed.recv(tensor, sender)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if rank == source and repeat:  # the first one sets the connection up
                found.append((size, (time.perf_counter() - begin) / 2))
    return found

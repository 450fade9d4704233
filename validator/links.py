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
    *,
    staged: bool,
) -> list[tuple[int, float]]:
    """Round trips between two ranks, halved: (bytes, seconds) of one way, on the source.

    Both ranks call it, alone on the links. A message is received into the device's memory before
    it is sent back, as an op needs it there; staged ones pass through host memory both ways.
    """
    found = []
    for size in sizes:
        tensor = torch.zeros(size, dtype=torch.uint8, device=device)
        host = torch.zeros(size, dtype=torch.uint8) if staged else tensor
        for repeat in range(REPEATS):
            if device.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for sender in (source, target):
                if rank == sender:
                    if staged:
                        host.copy_(tensor)
                    distributed.send(host, target if rank == source else source)
                else:
                    distributed.recv(host, sender)
                    if staged:
                        tensor.copy_(host)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if rank == source and repeat:  # the first one sets the connection up
                found.append((size, (time.perf_counter() - begin) / 2))
    return found

"""Bytes that a rank holds, read between ops: CUDA's allocator, or a count of live tensors on CPU.

A mark is (bytes now, most since the mark before). Both count tensors, not what the process takes
from the system. Counting slows ops down, so memory has a step of its own that is not timed.
"""

import weakref
from collections.abc import Iterable
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["AllocatorProbe", "StorageProbe", "probe_of"]

Mark = tuple[float, float]  # bytes now, most since the last mark


class AllocatorProbe:
    """CUDA's caching allocator. What it counts changes when the host issues an op, in row order.

    Modules of other plays may lie on the GPU too; what is not `held` at the start is not counted.
    """

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        self.base = float(sum(sizes.values()))
        self.others = 0.0

    def mark(self) -> Mark:
        """Read, and begin a new maximum."""
        reading = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return reading[0] - self.others, reading[1] - self.others

    def extended(self, earlier: Mark) -> Mark:
        """Read, and keep the higher of this maximum and the earlier mark's."""
        now, most = self.mark()
        return now, max(earlier[1], most)

    def __enter__(self) -> Self:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.others = torch.cuda.memory_allocated() - self.base
        return self

    def __exit__(self, *_: object) -> None:
        return None


class StorageProbe(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Live storages of tensors that were there at the start or came since, the CPU's stand-in."""

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.size: dict[int, int] = {}
        self.now = self.most = 0.0
        for tensor in held:
            self._count(tensor)

    def mark(self) -> Mark:
        """Read, and begin a new maximum."""
        reading = self.now, self.most
        self.most = self.now
        return reading

    def extended(self, earlier: Mark) -> Mark:
        """Read, and keep the higher of this maximum and the earlier mark's."""
        now, most = self.mark()
        return now, max(earlier[1], most)

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Run an operator and count what it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self.live.get(key)
        if known is not None and known() is storage:
            return

        def gone(_: object, key: int = key) -> None:
            self.now -= self.size.pop(key, 0)
            self.live.pop(key, None)

        self.live[key] = weakref.ref(storage, gone)
        self.size[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)


def probe_of(device: torch.device, held: Iterable[torch.Tensor]) -> AllocatorProbe | StorageProbe:
    """The probe of a device; `held` are the tensors that stand before the step."""
    return AllocatorProbe(held) if device.type == "cuda" else StorageProbe(held)

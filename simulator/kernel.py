"""Loops over columns, compiled by Numba once they pay: the only file that imports it.

A kernel is a plain function of NumPy arrays and numbers that calls no other kernel. In a process
that has only small work, as `bubblescope simulate` on a textbook's pipeline, it runs as Python,
because loading Numba would take longer; the first large call compiles it. What it compiles is kept
beside the file, or in the user's cache folder, so it compiles once for a machine; where neither can
be written it compiles once a process. Both ways compute the same numbers, bit for bit.
"""

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Generic, ParamSpec, TypeVar

import numpy as np

__all__ = ["Kernel", "compile_all", "kernel"]

SMALL = 20_000  # elements; a kernel takes some microseconds an element as Python [1]

P = ParamSpec("P")
R = TypeVar("R")

_state = {"compiling": False}  # whether this process has met work that pays for Numba


class Kernel(Generic[P, R]):
    """A function that is compiled on its first large call. A class to hold what it compiled to."""

    def __init__(self, python: Callable[P, R]) -> None:
        self.python = python
        update_wrapper(self, python)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it: as Python while all work is small, else compiled."""
        if _state["compiling"]:
            return self.compiled(*args, **kwargs)
        if max((len(a) for a in args if isinstance(a, np.ndarray)), default=0) < SMALL:
            return self.python(*args, **kwargs)
        compile_all()
        return self.compiled(*args, **kwargs)

    @cached_property
    def compiled(self) -> Callable[P, R]:
        """The machine code's entry."""
        import numba

        try:
            return numba.njit(cache=True, nogil=True)(self.python)
        except RuntimeError:  # no folder for the cache can be written
            return numba.njit(nogil=True)(self.python)


def kernel(python: Callable[P, R]) -> Kernel[P, R]:
    """Make a kernel of a loop."""
    return Kernel(python)


def compile_all() -> None:
    """From now on every kernel of this process runs compiled: for many calls, or large ones."""
    _state["compiling"] = True

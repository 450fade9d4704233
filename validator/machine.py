"""What this machine has to validate on, and one clear line where it does not suffice."""

import os
import re

__all__ = ["TESTED", "check_gpus", "check_torch", "cores", "ranks_here"]

TESTED = ("2.6", "2.8", "2.11", "2.13")  # torch versions that the tests have run on


def check_torch(*, untested: bool = False) -> None:
    """Refuse a torch that the tests have not seen, unless told to go on.

    Raises:
        ModuleNotFoundError: there is no torch; the command says how to install it.
        ValueError: its version is untested.
    """
    import torch

    found = re.match(r"\d+\.\d+", torch.__version__)
    if not untested and (found is None or found.group() not in TESTED):
        raise ValueError(
            f"torch {torch.__version__} is untested, and validating uses private parts of it; "
            f"install torch {TESTED[-1]}, or go on with --untested-torch"
        )


def ranks_here(asked: int) -> int:
    """How many of the ranks asked for run on this host: torchrun says, else all. [1]"""
    return int(os.environ.get("LOCAL_WORLD_SIZE", asked)) if "RANK" in os.environ else asked


def check_gpus(asked: int, *, nccl: bool) -> None:
    """Refuse what this machine's GPUs cannot do for the ranks that run here.

    Raises:
        ValueError: there are fewer GPUs than asked, or torch has no NCCL.
    """
    import torch

    found = torch.cuda.device_count()
    here = ranks_here(asked)
    if found < here < asked:
        raise ValueError(
            f"torchrun starts {here} of the {asked} ranks on this host, but torch "
            f"{torch.__version__} finds {found or 'no'} GPUs here; use --nproc-per-node {found}"
        )
    if found < here:
        few = f"only {found}" if found else "none"
        way = f"--gpus {found}, or " if found else ""
        raise ValueError(
            f"--gpus is {asked}, but torch {torch.__version__} finds {few}; use {way}--cpus "
            f"{min(asked, cores())} to run on CPU cores over gloo"
        )
    if nccl and asked > 1 and not torch.distributed.is_nccl_available():
        raise ValueError(
            f"torch {torch.__version__} has no NCCL, which {asked} GPUs talk by; install a build "
            "with CUDA, or use --gpus 1"
        )


def cores() -> int:
    """Cores that this process may use. [1]"""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

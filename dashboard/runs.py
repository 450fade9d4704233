"""The run of a choice. A pure function of the choice, so that asking twice costs once.

What is remembered is no state: it is keyed by all that a run depends on, and forgets.
"""

from functools import lru_cache

from dashboard.choice import Choice, job_of
from dashboard.limits import require_work
from simulator.simulate import Run, simulate

__all__ = ["run_of"]

MOST_KEPT = 6


def run_of(choice: Choice) -> Run:
    """Simulate what was chosen.

    Raises:
        ValueError: the job is not legal, cannot finish, or is more than a page's work.
    """
    return _run(choice.model_dump_json())


@lru_cache(maxsize=MOST_KEPT)
def _run(text: str) -> Run:
    job = job_of(Choice.model_validate_json(text))
    require_work(job.plan)
    return simulate(job)

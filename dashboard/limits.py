"""How much work one request may ask for; every refusal states the limit that it met."""

from simulator.job import Plan
from simulator.schedules import recipe_of

__all__ = ["MOST_OPS", "MOST_PASTE", "MOST_QUERY", "MOST_REQUEST", "MOST_STATE", "require_work"]

MOST_OPS = 400_000  # forwards and backwards of one simulation on a page: about a second [1]
MOST_SOLVED = 4_096  # of a schedule that is solved for [1]
MOST_QUERY = 8_000  # of an address [characters]
MOST_STATE = 64_000  # of a state, unpacked [bytes]
MOST_PASTE = 256_000  # of a pasted text [characters]
MOST_REQUEST = 72_000_000  # of one request: a file of 50 MB in base64, and some more [bytes]

SLICES = 64  # into which TeraPipe may cut a microbatch where the plan leaves it open
ITERATIONS = 4  # that an asynchronous schedule's rows hold, about


def require_work(plan: Plan) -> None:
    """Refuse a plan that would hold up the page.

    >>> require_work(Plan(pp=64, num_microbatches=100_000))
    Traceback (most recent call last):
    ValueError: plan.num_microbatches is 100,000, which makes 12,800,000 ops on 64 stages; \
a page simulates at most 400,000: use fewer microbatches or stages, or `bubblescope simulate`, \
which takes 20,000,000
    """
    ops, most = 2 * plan.num_stages * plan.num_microbatches, MOST_OPS
    if plan.rows is None:
        recipe = recipe_of(plan.schedule)
        if "num_slices" in recipe.takes:
            ops *= plan.num_slices or SLICES
        if recipe.weights is not None:
            ops *= ITERATIONS
        if plan.schedule == "optimal":
            most = MOST_SOLVED
    if ops > most:
        raise ValueError(
            f"plan.num_microbatches is {plan.num_microbatches:,}, which makes {ops:,} ops on "
            f"{plan.num_stages:,} stages; a page simulates at most {most:,}"
            f"{' of this schedule' if most < MOST_OPS else ''}: use fewer microbatches or stages, "
            "or `bubblescope simulate`, which takes 20,000,000"
        )

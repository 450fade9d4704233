"""Everything that Explore shows for a state."""

import hashlib
from typing import Any

from dash import no_update

from dashboard.exploration import ExploreState
from dashboard.figures import grid, split, timeline
from dashboard.figures.detail import Window
from dashboard.layout.headline import headline, legend, split_key
from dashboard.layout.inspector import bubble_at, gap_buttons, hint, inspected
from dashboard.links import link_use
from dashboard.runs import run_of
from dashboard.theme import Look
from simulator.simulate import Run
from traces.labels import time_unit

__all__ = ["answer", "key_of", "view_figure"]

LINK_BINS = 600


def answer(
    state: ExploreState, look: Look, *, whole: bool, there: object = None
) -> tuple[Any, ...]:
    """The timeline alone, or with all that stands around it, but for what is `there` already.

    Timeline, headline, legend, split, its key, GPU grid, longest gaps, inspector, the timeline's
    style; then what is there now, by which the next answer is shorter.

    Raises:
        ValueError: the job cannot run.
    """
    run = run_of(state.choice)
    assert run.job is not None
    figure = view_figure(run, state, look)
    before = there if isinstance(there, dict) else {}
    if not whole:
        return (figure, *(no_update,) * 8, before)
    kinds, high = timeline.legend(run.timeline), timeline.height(run.timeline.num_ranks)
    now = {
        "legend": str(kinds),
        "grid": grid.key_of(run.job, look, state.group),
        "words": "hint" if state.bubble is None else f"{key_of(state)} {state.bubble}",
        "height": high,
    }
    fresh = {name for name, key in now.items() if before.get(name) != key}
    words: Any = no_update
    if "words" in fresh:
        words = hint() if state.bubble is None else inspected(run, *state.bubble)
    return (
        figure,
        headline(run.report, state.tokens, state.price),
        legend(kinds) if "legend" in fresh else no_update,
        split.figure(run.report, look),
        split_key(run.report),
        grid.figure(run.job, look, state.group) if "grid" in fresh else no_update,
        gap_buttons(run),
        words,
        {"height": high} if "height" in fresh else no_update,
        now,
    )


def view_figure(run: Run, state: ExploreState, look: Look) -> Any:  # noqa: ANN401 - a figure
    """The timeline in the state's window, with its marks."""
    window = _window(run, state)
    bubble = bubble_at(run, *state.bubble) if state.bubble is not None else None
    figure = timeline.figure(
        run,
        look,
        window=window,
        links=link_use(run, LINK_BINS),
        critical_path=state.critical,
        bubble=bubble,
    )
    key = key_of(state)
    per = time_unit(run.timeline.makespan).per_si
    figure["layout"] |= {"uirevision": f"{key}{window}", "meta": {"key": key, "per_si": per}}
    return figure


def _window(run: Run, state: ExploreState) -> Window | None:
    """What is in view; a part that is none shows all."""
    if state.window is None and state.ranks is None:
        return None
    start, end = state.window or (0.0, run.timeline.makespan)
    end = min(end, run.timeline.makespan)
    top, bottom = state.ranks or (-0.5, float("inf"))
    if not (0 <= start < end and top < bottom and bottom > 0 and top < run.timeline.num_ranks):
        return None
    return Window(start, end, top, bottom)


def key_of(state: ExploreState) -> str:
    """What tells one job's timeline from another's."""
    return hashlib.sha256(state.choice.model_dump_json().encode()).hexdigest()[:16]

"""Everything that Explore shows for a state."""

import hashlib
from typing import Any

from dash import Patch, no_update

from dashboard.exploration import ExploreState
from dashboard.figures import grid, split, timeline
from dashboard.figures.detail import Window
from dashboard.figures.marks import BUBBLE, CHAIN, bubble_marks
from dashboard.layout.headline import headline, legend, split_key
from dashboard.layout.inspector import bubble_at, gap_buttons, hint, inspected
from dashboard.layout.markup import markup
from dashboard.links import link_use
from dashboard.runs import run_of
from dashboard.theme import Look
from simulator.simulate import Run
from traces.labels import time_unit

__all__ = ["answer", "key_of", "view_figure"]

LINK_BINS = 600


def answer(
    state: ExploreState, look: Look, *, scope: str = "all", there: object = None
) -> tuple[Any, ...]:
    """The timeline with all that stands around it, but for what is `there` already.

    Timeline, headline, legend, split, its key, GPU grid, longest gaps, inspector, the timeline's
    style; then what is there now, by which the next answer is shorter. Of scope "view" timeline and
    inspector alone, of scope "bubble" the inspector and what is pointed out on the timeline.

    Raises:
        ValueError: the job cannot run.
    """
    run = run_of(state.choice)
    assert run.job is not None
    before = there if isinstance(there, dict) else {}
    spoken = "hint" if state.bubble is None else f"{key_of(state)} {state.bubble}"
    words: Any = no_update
    if before.get("words") != spoken:
        words = hint() if state.bubble is None else inspected(run, *state.bubble)
    if scope == "bubble":
        return (
            pointed(run, state),
            *(no_update,) * 6,
            words,
            no_update,
            before | {"words": spoken},
        )
    figure = view_figure(run, state, look)
    if scope == "view":
        return (figure, *(no_update,) * 6, words, no_update, before | {"words": spoken})
    kinds, high = timeline.legend(run.timeline), timeline.height(run.timeline.num_ranks)
    now = {
        "legend": str(kinds),
        "grid": grid.key_of(run.job, look, state.group),
        "words": spoken,
        "height": high,
    }
    fresh = {name for name, key in now.items() if before.get(name) != key}
    return (
        figure,
        markup(headline(run.report, state.tokens, state.price)),
        markup(legend(kinds)) if "legend" in fresh else no_update,
        split.figure(run.report, look),
        markup(split_key(run.report)),
        grid.figure(run.job, look, state.group) if "grid" in fresh else no_update,
        markup(gap_buttons(run)),
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
    key, layout = key_of(state), figure["layout"]
    layout["uirevision"] = f"{key}{window}"
    layout["meta"] = {  # what assets/explore.js tells the reader's own zoom by
        "key": key,
        "per_si": time_unit(run.timeline.makespan).per_si,
        "x": layout["xaxis"]["range"],
        "y": layout["yaxis"]["range"],
        "window": state.window,
        "ranks": state.ranks,
    }
    return figure


def pointed(run: Run, state: ExploreState) -> Patch:
    """The change of the timeline that points out the state's bubble and what led to it."""
    bubble = bubble_at(run, *state.bubble) if state.bubble is not None else None
    figure = Patch()
    marks = bubble_marks(bubble, time_unit(run.timeline.makespan))
    for place, corners in zip((BUBBLE, CHAIN), marks, strict=True):
        for name, values in corners.items():
            figure["data"][place][name] = values
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

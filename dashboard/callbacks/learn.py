"""Learn: numbers to schedule and formula; the player runs in the browser alone."""

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, no_update

from dashboard import ids
from dashboard.callbacks.height import keep_height
from dashboard.export import PICTURES, Picture, add_export
from dashboard.figures.stacked import Band, stacked
from dashboard.layout import learn as page
from dashboard.layout.exports import links
from dashboard.notice import refused
from dashboard.scenes import STEPS
from dashboard.state import encode
from dashboard.story import LearnState, Numbers, Scene, run_of
from dashboard.visit import address, visit_of
from simulator.errors import validated

__all__ = ["register"]

NAMES = ("step", "pp", "m", "f", "i", "w")  # of the controls


def register(app: Dash) -> None:
    """Add the page's callbacks."""
    keep_height(app, page.FIGURE)
    controls = [
        Input(page.STEP, "value"),
        *(Input(name, "value") for name in page.SLIDERS.values()),
        *(Input(name, "value") for name in page.TIMES.values()),
    ]
    app.callback(
        Output(page.FIGURE, "figure"),
        Output(page.STORY, "children"),
        Output(page.FORMULA, "children"),
        Output(page.QUESTION, "children"),
        Output(page.EXPORTS, "children"),
        Output(page.PROBLEM, "children"),
        *controls,
        Input(ids.visit_of("learn"), "data"),
    )(update)
    app.callback(
        Output(ids.QUERY, "data", allow_duplicate=True),
        *controls,
        Input(page.AT, "data"),
        Input(ids.visit_of("learn"), "data"),
        prevent_initial_call="initial_duplicate",
    )(describe)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("player", "load"),
        Input(page.FIGURE, "figure"),
        State(page.AT, "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("player", "pace"), Input(page.SPEED, "value")
    )
    add_export(app.server, "learn", LearnState, picture)


def update(*values: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what a browser sends
    """Everything of a step, or what is wrong with its numbers."""
    *numbers, about = values
    given = dict(zip(NAMES, numbers, strict=True))
    try:
        state = validated(LearnState, given, "")
        scene = _scene(state)
        run = run_of(scene, state)
    except ValueError as error:
        return (*(no_update,) * 5, refused(error))
    held = tuple(f"holds {count / scene.chunks:g}" for count in run.report.peak_in_flight.tolist())
    figure = stacked([Band("", run.timeline, held=held)], visit_of(about).look, unit="t")
    figure.update_xaxes(fixedrange=True)  # the player's curtain stands on the whole step
    letters = Numbers(state.pp, state.m, state.f, state.i, state.w)
    return (
        figure,
        page.story(scene),
        page.formula(scene, letters, run.report),
        page.question(scene),
        links("learn", encode(state), PICTURES),
        None,
    )


def describe(*values: Any) -> Any:  # noqa: ANN401 - what a browser sends
    """The address of the numbers and of where the player stands."""
    *numbers, at, about = values
    try:
        state = validated(LearnState, {**dict(zip(NAMES, numbers, strict=True)), "at": at}, "")
    except ValueError:  # told beside the numbers
        return no_update
    return address(state, visit_of(about))


def picture(state: LearnState) -> Picture:
    """The schedule of a state, for a file."""
    scene = _scene(state)
    run = run_of(scene, state)
    return Picture(
        timeline=run.timeline,
        title=scene.title,
        subtitle=f"{scene.schedule}, {state.pp} ranks, {state.m} microbatches, "
        f"bubble {100 * run.report.bubble_fraction:.1f}% of the step",
        unit="t",
        name=f"bubblescope-{scene.name}-p{state.pp}-m{state.m}",
    )


def _scene(state: LearnState) -> Scene:
    found = [scene for scene in STEPS if scene.name == state.step]
    if not found:
        names = ", ".join(scene.name for scene in STEPS)
        raise ValueError(f"step is {state.step!r}, which the story has not; use one of {names}")
    return found[0]

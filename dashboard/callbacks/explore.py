"""Explore: one request a move, one answer with all figures."""

from typing import Any

import dash_mantine_components as dmc
from dash import (
    ALL,
    ClientsideFunction,
    Dash,
    Input,
    Output,
    Patch,
    State,
    ctx,
    html,
    no_update,
    set_props,
)

from dashboard import ids
from dashboard.answer import answer, key_of
from dashboard.choice import pasted_model
from dashboard.exploration import ExploreState
from dashboard.figures.marks import BUBBLE, CHAIN, bubble_marks
from dashboard.layout import explore as page
from dashboard.layout.fields import field_id
from dashboard.layout.inspector import bubble_at, inspected
from dashboard.problems import Problem, problem_of
from dashboard.request import state_of
from dashboard.runs import run_of
from dashboard.state import encode
from dashboard.theme import look
from simulator.errors import shown
from traces.labels import time_unit

__all__ = ["register"]


def register(app: Dash) -> None:
    """Add the page's callbacks."""
    field, slider = {"explore": "field", "name": ALL}, {"explore": "slider", "name": ALL}
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("explore", "gather"),
        Output(page.REQUEST, "data"),
        Input(field, "value"),
        Input(field, "checked"),
        Input(slider, "value"),
        Input(page.MODEL, "value"),
        Input(page.CONFIG, "data"),
        Input(page.CLUSTER, "value"),
        Input(page.SEQ_LEN, "value"),
        Input(page.TOKENS, "value"),
        Input(page.PRICE, "value"),
        Input(page.CRITICAL, "checked"),
        Input(page.GROUP, "value"),
        Input(page.RUN, "relayoutData"),
        Input(page.WHOLE, "n_clicks"),
        State(page.VIEW, "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("explore", "settled"), Input(page.PROBLEMS, "data")
    )
    app.callback(
        Output(page.RUN, "figure"),
        Output(page.HEADLINE, "children"),
        Output(page.LEGEND, "children"),
        Output(page.SPLIT, "figure"),
        Output(page.SPLIT_KEY, "children"),
        Output(page.GRID, "figure"),
        Output(page.GAPS, "children"),
        Output(page.INSPECTOR, "children"),
        Output(page.RUN, "style"),
        Output(page.RESULTS, "className"),
        Output(page.PROBLEMS, "data"),
        Output(ids.NOTICE, "children", allow_duplicate=True),
        Output(ids.QUERY, "data", allow_duplicate=True),
        Input(page.REQUEST, "data"),
        Input(ids.theme_of("explore"), "data"),
        State(page.PROBLEMS, "data"),
        prevent_initial_call=True,
    )(update)
    app.callback(
        Output(page.INSPECTOR, "children", allow_duplicate=True),
        Output(page.RUN, "figure", allow_duplicate=True),
        Output(ids.QUERY, "data", allow_duplicate=True),
        Input(page.SPOT, "data"),
        State(page.REQUEST, "data"),
        prevent_initial_call=True,
    )(inspect)
    app.callback(
        Output(page.MORE, "children"), Input(page.REQUEST, "data"), State(page.MORE, "children")
    )(more)
    app.callback(
        Output(page.CONFIG, "data"),
        Output(page.PASTE, "error"),
        Output(page.MODEL, "value"),
        Input(page.PASTE, "value"),
        prevent_initial_call=True,
    )(paste)


def update(request: Any, theme: Any, marked: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """All figures of a request, or what is wrong with it, at the field."""
    asked = ctx.triggered_id == page.REQUEST  # else the theme has changed
    if request is None or (asked and _is_answered(request)):
        return (no_update,) * 13
    before = marked.get("fields", []) if isinstance(marked, dict) else []
    try:
        state = state_of(request)
    except ValueError as error:
        return _refused(Problem(str(error), {}), before, no_update)
    try:
        parts = answer(
            state,
            look(theme),
            whole=not asked or request.get("scope") != "view",
            there=request.get("there"),
        )
    except ValueError as error:
        return _refused(problem_of(error, state), before, _query(state))
    _mark(Problem("", {}), before)
    *shown, there = parts
    mended = bool(before) or not asked or bool(request.get("stale"))
    name, notice = ("results", None) if mended else (no_update, no_update)
    return (*shown, name, {"fields": [], "there": there}, notice, _query(state))


def _is_answered(request: Any) -> bool:  # noqa: ANN401 - what a browser sends
    """Whether the layout came with what is asked for."""
    return isinstance(request, dict) and request.get("scope") == "none"


def more(request: Any, there: Any) -> Any:  # noqa: ANN401 - what a browser sends
    """The rest of the fields, once the page stands."""
    return no_update if there or not request else page.more_fields(state_of(request))


def inspect(spot: Any, request: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what a browser sends
    """What was clicked explains itself; a click on a timeline that is gone says so."""
    if not isinstance(spot, dict) or request is None:
        return no_update, no_update, no_update
    state = state_of(request)
    run = run_of(state.choice)
    if spot.get("key") not in (None, key_of(state)):
        gone = "The timeline has changed since that click; click again."
        return html.P(gone, className="muted"), no_update, no_update
    rank, time = spot.get("rank"), spot.get("time")
    if not isinstance(rank, int) or not isinstance(time, (int, float)):
        raise ValueError(f"the click is at rank {shown(rank)}, time {shown(time)}; click again")
    words = inspected(run, rank, float(time))
    marks = bubble_marks(bubble_at(run, rank, float(time)), time_unit(run.timeline.makespan))
    figure = Patch()
    for place, corners in zip((BUBBLE, CHAIN), marks, strict=True):
        for axis, values in corners.items():
            figure["data"][place][axis] = values
    return words, figure, _query(state.model_copy(update={"bubble": (rank, float(time))}))


def paste(text: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what a browser sends
    """The model of a pasted config.json takes the place of the preset."""
    if not text:
        return no_update, None, no_update
    try:
        return pasted_model(str(text)).model_dump(mode="json"), None, None
    except ValueError as error:
        return no_update, str(error), no_update


def _refused(problem: Problem, before: list[str], query: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Mark the fields; what was shown stays, dimmed, under the sentence."""
    _mark(problem, before)
    alert = dmc.Alert(problem.message, title="This job cannot run", color="orange", variant="light")
    kept = (no_update,) * 9
    fields = {"fields": list(problem.works), "stale": True}
    return (*kept, "results stale", fields, alert, query)


def _mark(problem: Problem, before: list[str]) -> None:
    """Set the error of each field that is at fault, and clear those that no longer are."""
    for name in before:
        if isinstance(name, str) and name not in problem.works:
            set_props(_control(name), {"error": None})
    for place, (name, values) in enumerate(problem.works.items()):
        said = problem.message if place == 0 else "or change this one"
        set_props(_control(name), {"error": _way_out(name, said, values)})


def _control(name: str) -> Any:  # noqa: ANN401 - a component's id
    own = {"model": page.MODEL, "cluster": page.CLUSTER, "seq_len": page.SEQ_LEN}
    return own.get(name) or field_id(name)


def _way_out(name: str, said: str, values: tuple[Any, ...]) -> list[Any]:
    """The sentence, and a button for each value that works."""
    buttons: list[Any] = [
        html.Button(
            _shown(value),
            className="fix",
            **_data(name, value),
        )
        for value in values
    ]
    works = [html.Span("works: "), *buttons] if buttons else []
    return [html.Span(said), html.Span(works, className="works")]


def _shown(value: Any) -> str:  # noqa: ANN401 - of any field
    return "empty" if value is None else str(value).lower()


def _data(name: str, value: Any) -> Any:  # noqa: ANN401 - attributes
    return {"data-fix": name, "data-value": "" if value is None else str(value)}


def _query(state: ExploreState) -> Any:  # noqa: ANN401 - a query, or nothing to say
    """The address; a state that is too large for one leaves the address as it is."""
    try:
        return encode(state)
    except ValueError:
        return no_update

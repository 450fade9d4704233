"""Search: starts, watches and cancels a job; what it found so far, every moment."""

from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, no_update

from dashboard import ids
from dashboard.callbacks.height import keep_height
from dashboard.figures.pareto import pareto
from dashboard.jobs import Told, cancel, start, told
from dashboard.layout import search as page
from dashboard.layout.compare import grid_class
from dashboard.layout.plain import beat, problem
from dashboard.planning import (
    KNOBS_TYPED,
    MARGIN,
    SearchState,
    numbers_of,
    space_for,
    table_rows,
)
from dashboard.visit import address, visit_of
from simulator.errors import validated

__all__ = ["register"]

CONTROLS = (
    page.MODEL,
    page.CLUSTER,
    page.GPUS,
    page.BATCH,
    page.SEQ_LEN,
    page.SCHEDULES,
    page.RECOMPUTE,
    page.RANKING,
)
NAMES = (
    "model",
    "cluster",
    "num_gpus",
    "global_batch_size",
    "seq_len",
    "schedule",
    "recompute",
    "by",
)


def register(app: Dash) -> None:
    """Add the page's callbacks."""
    keep_height(app, page.FRONT)
    knobs = page.knob_id(ALL)
    app.callback(
        Output(page.JOB, "data"),
        Output(page.PROBLEM, "children"),
        Input(page.START, "n_clicks"),
        State(page.JOB, "data"),
        *(State(name, "value") for name in CONTROLS),
        State(knobs, "value"),
        running=[(Output(page.START, "disabled"), True, False)],  # a second click starts no second
        prevent_initial_call=True,
    )(begin)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("pace", "next"), Input(page.BEAT, "data")
    )
    app.callback(
        Output(page.PROBLEM, "children", allow_duplicate=True),
        Input(page.CANCEL, "n_clicks"),
        State(page.JOB, "data"),
        prevent_initial_call=True,
    )(end)
    app.callback(
        Output(page.PROGRESS, "children"),
        Output(page.FRONT, "figure"),
        Output(page.TABLE, "rowData"),
        Output(page.TABLE, "columnDefs"),
        Output(page.TABLE, "className"),
        Output(page.CHOSEN, "children"),
        Output(page.BEAT, "data"),
        Output(page.CANCEL, "disabled"),
        Input(page.TICK, "data"),
        Input(page.JOB, "data"),
        Input(page.RANKING, "value"),
        Input(page.FRONT, "clickData"),
        Input(ids.visit_of("search"), "data"),
    )(watch)
    app.callback(
        Output(ids.QUERY, "data", allow_duplicate=True),
        Output(knobs, "error"),
        Output(page.WRONG, "children"),
        Input(page.JOB, "data"),
        *(Input(name, "value") for name in CONTROLS),
        Input(knobs, "value"),
        Input(ids.visit_of("search"), "data"),
        prevent_initial_call="initial_duplicate",
    )(describe)


def begin(_: Any, job: Any, *values: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Start a search; the one before it ends."""
    try:
        space = space_for(_state(None, *values))
    except ValueError:  # told beside the knobs
        return no_update, None
    if job:
        _quietly_cancel(job)
    try:
        return start("search", {"space": space.model_dump_json(), "margin": MARGIN}), None
    except ValueError as error:
        return no_update, problem(str(error))


def end(_: Any, job: Any) -> Any:  # noqa: ANN401 - a component
    """Cancel the search."""
    if not job:
        return None
    try:
        cancel(str(job))
    except ValueError as error:
        return problem(str(error))
    return None


def watch(_: Any, job: Any, by: Any, click: Any, about: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """What the search has found so far."""
    scheme = visit_of(about).look
    if not job:
        return page.progress(None), no_update, [], [], grid_class(scheme), [], None, True
    try:
        now = told(str(job), "search")
    except ValueError as error:
        now = Told("failed", {}, str(error))
    found, ended = now.result, not now.is_running
    again = beat(page.TICK, page.PROGRESS, None if ended else page.EVERY)
    if not found:
        return page.progress(now), no_update, [], [], grid_class(scheme), [], again, ended
    rows = table_rows(found["best"].get(by, []), found["memory"])
    index = _clicked(click)
    point = next((p for p in found["front"] if p["index"] == index), None)
    return (
        page.progress(now),
        pareto(found["front"], scheme, None if point is None else index),
        rows,
        page.columns(rows),
        grid_class(scheme),
        page.chosen(point),
        again,
        ended,
    )


def describe(job: Any, *values: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what a browser sends
    """The address, what is wrong with each knob, and with the space that they make."""
    *controls, about = values
    knobs = controls[-1]
    errors = [_wrong(text) for text in knobs]
    if any(errors):
        return no_update, errors, None
    try:
        state = _state(job, *controls)
    except ValueError as error:
        return no_update, errors, problem(str(error))
    said = address(state, visit_of(about))
    try:
        space_for(state)
    except ValueError as error:
        return said, errors, problem(str(error))
    return said, errors, None


def _state(job: Any, *values: Any) -> SearchState:  # noqa: ANN401 - what a browser sends
    *given, knobs = values
    table = dict(zip(NAMES, given, strict=True))
    if table["seq_len"] == "":
        table["seq_len"] = None
    typed = {name: numbers_of(text) for name, text in zip(KNOBS_TYPED, knobs, strict=True)}
    for name in ("schedule", "recompute"):
        table[name] = tuple(table[name] or ()) or None
    return validated(SearchState, {**table, **typed, "job": job}, "")


def _wrong(text: Any) -> str | None:  # noqa: ANN401 - what a browser sends
    try:
        numbers_of(text)
    except ValueError as error:
        return str(error)
    return None


def _clicked(click: Any) -> int | None:  # noqa: ANN401 - what a browser sends
    try:
        return int(click["points"][0]["customdata"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def _quietly_cancel(job: Any) -> None:  # noqa: ANN401 - what a browser sends
    """A search that is gone needs no end."""
    try:
        cancel(str(job))
    except ValueError:
        return

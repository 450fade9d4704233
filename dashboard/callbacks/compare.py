"""Compare: the fields of the runs to one figure and one table."""

from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, no_update

from dashboard import ids
from dashboard.callbacks.height import keep_height
from dashboard.comparison import (
    FIELDS,
    MOST_RUNS,
    CompareState,
    Entry,
    compared,
    figure_rows,
    finding,
)
from dashboard.figures.stacked import Band, stacked
from dashboard.layout import compare as page
from dashboard.layout.plain import problem
from dashboard.layout.upload import store_of
from dashboard.notice import refused
from dashboard.receiving import add_upload
from dashboard.visit import address, visit_of
from simulator.errors import validated
from simulator.table import seconds

__all__ = ["register"]


def register(app: Dash) -> None:
    """Add the page's callbacks."""
    keep_height(app, page.FIGURE)
    fields = page.field_id(ALL, ALL)
    app.callback(
        Output(page.FIGURE, "figure"),
        Output(page.TABLE, "rowData"),
        Output(page.TABLE, "columnDefs"),
        Output(page.TABLE, "className"),
        Output(page.FINDING, "children"),
        Output(page.part_id("error", ALL), "children"),
        Output(ids.NOTICE, "children", allow_duplicate=True),
        Output(ids.QUERY, "data", allow_duplicate=True),
        Input(fields, "value"),
        Input(page.part_id("token", ALL), "data"),
        Input(page.COSTS, "value"),
        Input(page.MODEL, "value"),
        Input(page.CLUSTER, "value"),
        *(Input(name, "value") for name in page.TIMES.values()),
        Input(page.LATENCY, "value"),
        Input(page.VIEW, "data"),
        Input(ids.visit_of("compare"), "data"),
        State(fields, "id"),
        prevent_initial_call="initial_duplicate",
    )(update)
    app.callback(
        Output(page.RUNS, "children"),
        Output(page.TEXTBOOK, "display"),
        Output(page.REAL, "display"),
        Output(page.DONE, "data"),
        Output(page.FULL, "children"),
        Input(page.ADD, "n_clicks"),
        Input(page.part_id("remove", ALL), "n_clicks"),
        Input(page.COSTS, "value"),
        Input(store_of("compare"), "data"),
        State(page.DONE, "data"),
        State(fields, "value"),
        State(fields, "id"),
        State(page.part_id("token", ALL), "data"),
        prevent_initial_call=True,
    )(change)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("zoom", "view"),
        Output(page.VIEW, "data"),
        Input(page.FIGURE, "relayoutData"),
        State(page.VIEW, "data"),
        prevent_initial_call=True,
    )
    add_upload(app.server)


def update(values: Any, tokens: Any, costs: Any, *given: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Figure, table and what is wrong with each run."""
    model, cluster, *times, latency, view, about, names = given
    visit = visit_of(about)
    table = {
        "costs": costs,
        "model": model,
        "cluster": cluster,
        **dict(zip(page.TIMES, times, strict=True)),
        "latency": latency,
        "runs": _entries(values, names, tokens),
        "view": view,
    }
    empty = [no_update] * len(tokens)
    try:
        state = validated(CompareState, table, "")
        found = compared(state)
    except ValueError as error:
        return (*(no_update,) * 5, empty, refused(error), no_update)
    shown = [one for one in found if one.timeline is not None]
    errors = [page.error_of(one) for one in found]
    if not shown:
        return (no_update, [], [], no_update, "", errors, None, address(state, visit))
    unit = "t" if all(one.unit == "t" for one in shown) else "s"
    bands = [Band(one.name, one.timeline, _note(one)) for one in shown if one.timeline is not None]
    return (
        stacked(bands, visit.look, unit=unit, view=state.view),
        figure_rows(found),
        page.columns(found),
        page.grid_class(visit.look),
        finding(found),
        errors,
        None,
        address(state, visit),
    )


def change(
    added: Any,  # noqa: ANN401 - what a browser sends
    removed: Any,  # noqa: ANN401
    costs: Any,  # noqa: ANN401
    sent: Any,  # noqa: ANN401
    done: Any,  # noqa: ANN401
    *cards: Any,  # noqa: ANN401
) -> tuple[Any, ...]:
    """The runs' cards after some were added, removed or uploaded, or costs are others.

    What is to be done is what was clicked and sent less what is done, so that a click whose answer
    was overtaken by the next click is not lost.
    """
    before = done if isinstance(done, dict) else {}
    uploads = [one["token"] for one in (sent or {}).get("all", [])]
    now = {"costs": costs, "added": added or 0, "uploads": len(uploads)}
    if now == {"costs": before.get("costs"), "added": before.get("added", 0),
               "uploads": before.get("uploads", 0)} and not any(removed):  # fmt: skip
        return (no_update,) * 5  # the cards were only put in
    entries = [Entry.model_validate(entry) for entry in _entries(*cards)]
    entries = [entry for entry, gone in zip(entries, removed, strict=True) if not gone]
    plans = [entry.plan for entry in entries if entry.token is None]
    another = Entry(plan=plans[-1] if plans else {"pp": 4, "num_microbatches": 8})
    entries += [another] * (now["added"] - before.get("added", 0))
    entries += [Entry(token=token) for token in uploads[before.get("uploads", 0) :]]
    full = f"{MOST_RUNS} runs are compared at most; remove one first"
    words = problem(full if len(entries) > MOST_RUNS else "")
    displays = ("flex", "none") if costs == "textbook" else ("none", "flex")
    return (page.runs(entries[:MOST_RUNS], costs), *displays, now, words)


def _entries(values: Any, names: Any, tokens: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """What the cards say: an upload's token, or the fields of a plan."""
    plans: dict[int, dict[str, Any]] = {}
    known = {*FIELDS["textbook"], *FIELDS["model"]}
    for value, name in zip(values, names, strict=True):
        if name["name"] in known:
            plans.setdefault(name["run"], {})[name["name"]] = None if value == "" else value
    return [
        {"token": token} if token else {"plan": plans.get(at, {})}
        for at, token in enumerate(tokens)
    ]


def _note(one: Any) -> str:  # noqa: ANN401 - a Compared
    report = one.report
    step = f"{report.step_time:g}" if one.unit == "t" else seconds(report.step_time)
    return f"step {step} · bubble {100 * report.bubble_fraction:.1f} %"

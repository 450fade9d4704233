"""Compare: the fields of the runs to one figure and one table."""

from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, no_update

from dashboard import ids
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
from dashboard.layout.upload import store_of
from dashboard.notice import refused
from dashboard.receiving import add_upload
from dashboard.state import encode
from dashboard.theme import look
from simulator.errors import validated
from simulator.table import seconds

__all__ = ["register"]


def register(app: Dash) -> None:
    """Add the page's callbacks."""
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
        Input(ids.theme_of("compare"), "data"),
        State(fields, "id"),
        prevent_initial_call="initial_duplicate",
    )(update)
    app.callback(
        Output(page.RUNS, "children"),
        Output(page.TEXTBOOK, "display"),
        Output(page.REAL, "display"),
        Output(ids.NOTICE, "children", allow_duplicate=True),
        Input(page.ADD, "n_clicks"),
        Input(page.part_id("remove", ALL), "n_clicks"),
        Input(page.COSTS, "value"),
        Input(store_of("compare"), "data"),
        State(fields, "value"),
        State(fields, "id"),
        State(page.part_id("token", ALL), "data"),
        prevent_initial_call=True,
    )(change)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("zoom", "view"),
        Output(page.VIEW, "data"),
        Input(page.FIGURE, "relayoutData"),
        prevent_initial_call=True,
    )
    add_upload(app.server)


def update(values: Any, tokens: Any, costs: Any, *given: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Figure, table and what is wrong with each run."""
    model, cluster, *times, latency, view, theme, names = given
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
        return (no_update, [], [], no_update, "", errors, None, encode(state))
    unit = "t" if all(one.unit == "t" for one in shown) else "s"
    bands = [Band(one.name, one.timeline, _note(one)) for one in shown if one.timeline is not None]
    return (
        stacked(bands, look(theme), unit=unit, view=state.view),
        figure_rows(found),
        page.columns(found),
        page.grid_class(theme),
        finding(found),
        errors,
        None,
        encode(state),
    )


def change(_: Any, removed: Any, costs: Any, sent: Any, *cards: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """The runs' cards after one was added, removed or uploaded, or costs are others."""
    entries = [Entry.model_validate(entry) for entry in _entries(*cards)]
    by = ctx.triggered_id
    problem = None
    if isinstance(by, dict):
        if not any(removed):
            return (no_update,) * 4  # the cards were only put in
        entries = [entry for at, entry in enumerate(entries) if at != by["run"]]
    elif by in (page.ADD, store_of("compare")) and len(entries) >= MOST_RUNS:
        problem = refused(f"{MOST_RUNS} runs are compared at most; remove one first")
    elif by == page.ADD:
        plans = [entry.plan for entry in entries if entry.token is None]
        entries.append(Entry(plan=plans[-1] if plans else {"pp": 4, "num_microbatches": 8}))
    elif by == store_of("compare"):
        entries.append(Entry(token=sent["token"]))
    is_textbook = costs == "textbook"
    displays = ("flex", "none") if is_textbook else ("none", "flex")
    return (page.runs(entries, costs), *displays, problem)


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

"""Design: rows to schedule, the optimiser's job, the exports."""

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, no_update
from flask import Response, request

from dashboard import ids
from dashboard.callbacks.height import keep_height
from dashboard.design import (
    DesignState,
    asked_for,
    cells_of,
    draft_of,
    rows_text,
    with_transfers,
)
from dashboard.export import PICTURES, Picture, add_export, answer
from dashboard.figures.stacked import Band, stacked
from dashboard.jobs import Told, cancel, start, told
from dashboard.layout import design as page
from dashboard.layout.exports import links
from dashboard.layout.plain import beat, problem
from dashboard.state import decode, encode
from dashboard.visit import Visit, address, visit_of
from simulator.dialects import write_rows
from simulator.errors import validated
from simulator.schedule import Schedule

__all__ = ["register"]

NAMES = (
    "rows",
    "schedule",
    "pp",
    "vpp",
    "m",
    "f",
    "i",
    "w",
    "latency",
    "limit",
    "seconds",
    "job",
    "view",
)
STUCK = "These rows cannot run."


def register(app: Dash) -> None:
    """Add the page's callbacks."""
    keep_height(app, page.FIGURE)
    controls = [
        page.SCHEDULE,
        *page.SIZES.values(),
        *page.TIMES.values(),
        page.LIMIT,
        page.SECONDS,
    ]
    app.callback(
        Output(page.FIGURE, "figure"),
        Output(page.SPACE, "className"),
        Output(page.CELLS, "data"),
        Output(page.RESULT, "children"),
        Output(page.ERROR, "children"),
        Output(page.EXPORTS, "children"),
        Output(ids.QUERY, "data", allow_duplicate=True),
        Input(page.TEXT, "data"),
        *(Input(name, "value") for name in controls),
        Input(page.JOB, "data"),
        Input(page.VIEW, "data"),
        Input(ids.visit_of("design"), "data"),
        prevent_initial_call="initial_duplicate",
    )(update)
    app.callback(
        Output(page.ROWS, "value"),
        Output(page.ERROR, "children", allow_duplicate=True),
        Input(page.LOAD, "n_clicks"),
        State(page.TEXT, "data"),
        *(State(name, "value") for name in controls),
        prevent_initial_call=True,
    )(load)
    app.callback(
        Output(page.JOB, "data"),
        Output(page.PROGRESS, "children"),
        Input(page.START, "n_clicks"),
        State(page.JOB, "data"),
        State(page.TEXT, "data"),
        *(State(name, "value") for name in controls),
        running=[(Output(page.START, "disabled"), True, False)],  # a second click starts no second
        prevent_initial_call=True,
    )(begin)
    app.callback(
        Output(page.PROGRESS, "children", allow_duplicate=True),
        Output(page.BEAT, "data"),
        Output(page.CANCEL, "disabled"),
        Output(page.TAKE, "disabled"),
        Input(page.TICK, "data"),
        Input(page.JOB, "data"),
        State(page.TEXT, "data"),
        *(State(name, "value") for name in controls),
        prevent_initial_call="initial_duplicate",
    )(watch)
    app.callback(
        Output(page.PROGRESS, "children", allow_duplicate=True),
        Input(page.CANCEL, "n_clicks"),
        State(page.JOB, "data"),
        prevent_initial_call=True,
    )(end)
    app.callback(
        Output(page.ROWS, "value", allow_duplicate=True),
        Input(page.TAKE, "n_clicks"),
        State(page.JOB, "data"),
        prevent_initial_call=True,
    )(take)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("pace", "next"), Input(page.BEAT, "data")
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("design", "show"), Input(page.CELLS, "data")
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("design", "typed"), Input(page.ROWS, "value")
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("zoom", "view"),
        Output(page.VIEW, "data"),
        Input(page.FIGURE, "relayoutData"),
        State(page.VIEW, "data"),
        prevent_initial_call=True,
    )
    add_export(app.server, "design", DesignState, picture)
    for name in ("rows", "comms"):
        app.server.add_url_rule(f"/export/design-{name}.csv", f"export-{name}", _csv(name))


def update(*values: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what a browser sends
    """Run the rows, or mark what is wrong with them."""
    *given, about = values
    visit = visit_of(about)
    try:
        state = _state(given)
        draft = draft_of(state)
    except ValueError as error:
        wrong: tuple[Any, ...] = (STUCK, problem(str(error)), [], no_update)
        return (no_update, "card tight stale", no_update, *wrong)
    query, late = _query(state, visit)
    cells = cells_of(draft, rows_text(state))
    if draft.run is None:
        wrong = (STUCK, problem(draft.error), [], query)
        return (no_update, "card tight stale", cells, *wrong)
    report, chunks = draft.run.report, draft.run.plan.vpp
    held = tuple(f"holds {count / chunks:g}" for count in report.peak_in_flight.tolist())
    band = Band("", draft.run.timeline, held=held)
    figure = stacked([band], visit.look, unit="t", view=state.view)
    words = (
        f"step {report.step_time:g}, bubble {100 * report.bubble_fraction:.1f} % of the step, "
        f"at most {max(report.peak_in_flight.tolist()) / chunks:g} microbatches held"
    )
    files = [] if late else _files(encode(state.model_copy(update={"view": None})))
    return (figure, "card tight", cells, page.headline(words), problem(late), files, query)


def load(_: Any, *values: Any) -> tuple[Any, Any]:  # noqa: ANN401 - what a browser sends
    """The rows of the schedule that is chosen."""
    try:
        state = _state([None, *values[1:], None, None])
        return rows_text(state), None
    except ValueError as error:
        return no_update, problem(str(error))


def begin(_: Any, job: Any, *values: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Start the optimiser; one that runs ends."""
    try:
        asked = asked_for(_state([*values, None, None]))
        if job:
            _end(job)
        return start("optimize", asked.model_dump(mode="json")), page.improvement(
            Told("running", {}), None
        )
    except ValueError as error:
        return no_update, [problem(str(error))]


def watch(_: Any, job: Any, *values: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """How far the optimiser is."""
    if not job:
        return [], None, True, True
    try:
        now = told(str(job), "optimize")
    except ValueError as error:
        return [problem(str(error))], None, True, True
    try:
        draft = draft_of(_state([*values, None, None]))
        step = None if draft.run is None else draft.run.report.step_time
    except ValueError:  # told beside the rows
        step = None
    usable = not now.is_running and "rows" in now.result
    again = beat(page.TICK, page.PROGRESS, page.EVERY if now.is_running else None)
    return page.improvement(now, step), again, not now.is_running, not usable


def end(_: Any, job: Any) -> Any:  # noqa: ANN401 - a component
    """Ask the optimiser to stop."""
    return [problem(_end(job))] if job else []


def take(_: Any, job: Any) -> Any:  # noqa: ANN401 - text
    """The optimiser's rows become the page's."""
    return told(str(job), "optimize").result.get("rows", no_update)


def picture(state: DesignState) -> Picture:
    """The rows of a state as they run, for a file."""
    draft = draft_of(state)
    if draft.run is None:
        raise ValueError(draft.error)
    report = draft.run.report
    return Picture(
        timeline=draft.run.timeline,
        title="A schedule of one's own" if state.rows else state.schedule,
        subtitle=f"{report.num_ranks} ranks, {report.num_microbatches} microbatches, "
        f"bubble {100 * report.bubble_fraction:.1f}% of the step",
        unit="t",
        name="bubblescope-design",
    )


def _csv(name: str) -> Any:  # noqa: ANN401 - a view
    """The view of the rows as PyTorch loads them: compute only, or with sends and receives."""

    def make() -> tuple[bytes, str]:
        text = rows_text(decode(DesignState, request.query_string.decode("ascii", "replace")))
        if name == "comms":
            rows = write_rows(with_transfers(text), "pytorch-comms")
        else:
            with_transfers(text)  # rows that would hang are not handed out
            rows = write_rows(Schedule.parse(text), "pytorch-compute")
        return (rows.rstrip("\n") + "\n").encode(), f"bubblescope-{name}.csv"

    def view() -> Response:
        return answer(make, ".csv")

    return view


def _files(query: str) -> list[Any]:
    return [
        *links("design-rows", query, (".csv",), "rows"),
        *links("design-comms", query, (".csv",), "with sends and receives"),
        *links("design", query, PICTURES),
    ]


def _state(given: Any) -> DesignState:  # noqa: ANN401 - what a browser sends
    table = dict(zip(NAMES, given, strict=True))
    for name in ("limit",):
        table[name] = None if table[name] == "" else table[name]
    sizes = {name: table[name] for name in ("schedule", "pp", "vpp", "m")}
    text = table["rows"]
    table["rows"] = None
    state = validated(DesignState, table, "")
    if not text:
        return state
    try:
        same = rows_text(validated(DesignState, sizes, "")) == text
    except ValueError:  # no schedule to start from; the rows stand for themselves
        same = False
    return state if same else validated(DesignState, {**table, "rows": text}, "")


def _query(state: DesignState, visit: Visit) -> tuple[Any, str]:
    """The address, and what to say where it cannot hold the rows."""
    try:
        return address(state, visit), ""
    except ValueError as error:
        return no_update, f"The page goes on, but {error}."


def _end(job: Any) -> str:  # noqa: ANN401 - what a browser sends
    try:
        cancel(str(job))
    except ValueError as error:
        return str(error)
    return ""

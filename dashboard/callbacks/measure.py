"""Measure: an upload to its simulation, errors and predictions."""

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, no_update
from flask import Response, request

from dashboard import ids
from dashboard.callbacks.height import keep_height
from dashboard.export import answer
from dashboard.figures.errors import errors
from dashboard.figures.stacked import Band, stacked
from dashboard.layout import measure as page
from dashboard.layout.compare import grid_class
from dashboard.layout.exports import links
from dashboard.layout.plain import BLANK, problem
from dashboard.layout.upload import store_of
from dashboard.measurement import Measured, MeasureState, measured, op_errors, predictions
from dashboard.receiving import add_upload
from dashboard.state import decode, encode
from dashboard.uploads import uploaded
from dashboard.visit import address, visit_of
from simulator.calibrate import dump_calibration
from simulator.errors import validated
from simulator.timeline import Timeline
from traces.labels import time_unit

__all__ = ["register"]

EMPTY = "Upload a trace to see it over its simulation."


def register(app: Dash) -> None:
    """Add the page's callbacks."""
    keep_height(app, page.FIGURE, page.ERRORS)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("measure", "choose"),
        Output(page.TRACE, "data"),
        Output(page.RUN, "data"),
        Output(page.OWN, "disabled"),
        Output(page.VIEW, "data", allow_duplicate=True),
        Input(store_of(page.UPLOAD), "data"),
        Input(store_of(page.OTHER), "data"),
        Input(page.OWN, "n_clicks"),
        prevent_initial_call=True,
    )
    app.callback(
        Output(page.FIGURE, "figure"),
        Output(page.ERRORS, "figure"),
        Output(page.COSTS, "rowData"),
        Output(page.PREDICTIONS, "rowData"),
        Output(page.SCHEDULE, "data"),
        Output(page.NOTES, "children"),
        Output(page.EXPORTS, "children"),
        Output(page.FINDING, "children"),
        Output(page.RESULTS, "hidden"),
        Output(page.COSTS, "className"),
        Output(page.PREDICTIONS, "className"),
        Output(ids.QUERY, "data", allow_duplicate=True),
        Input(page.TRACE, "data"),
        Input(page.RUN, "data"),
        Input(page.SCHEDULE, "value"),
        Input(page.VIEW, "data"),
        Input(ids.visit_of("measure"), "data"),
        prevent_initial_call="initial_duplicate",
    )(update)
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("zoom", "view"),
        Output(page.VIEW, "data"),
        Input(page.FIGURE, "relayoutData"),
        State(page.VIEW, "data"),
        prevent_initial_call=True,
    )
    add_upload(app.server)
    app.server.add_url_rule("/export/measure.json", "export-measure", calibration)


def update(*values: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what a browser sends
    """Everything of an upload, or why there is nothing to see."""
    *given, about = values
    visit = visit_of(about)
    tables = (grid_class(visit.look), grid_class(visit.look))
    try:
        table = dict(zip(("trace", "run", "schedule", "view"), given, strict=True))
        state = validated(MeasureState, table, "")
        query = address(state, visit)
        if state.trace is None:
            return (BLANK, BLANK, [], [], [], [], [], EMPTY, True, *tables, query)
        one = measured(state.trace)
        bands, simulated = _bands(state, one)
        figure = stacked(bands, visit.look, unit=one.unit, view=state.view)
        found = predictions(state.trace)
    except ValueError as error:
        return (BLANK, BLANK, [], [], [], problem(str(error)), [], "", True, *tables, no_update)
    return (
        figure,
        errors(op_errors(one.timeline, simulated), visit.look),
        page.calibration_rows(one),
        page.prediction_rows(one, found),
        [p.schedule for p in found if p.timeline is not None],
        page.notes(one),
        links("measure", encode(state), (".json",), "measured costs"),
        _finding(one, simulated, own=state.run is None),
        False,
        *tables,
        query,
    )


def calibration() -> Response:
    """The measured costs as a file that `bubblescope` reads."""

    def make() -> tuple[bytes, str]:
        state = decode(MeasureState, request.query_string.decode("ascii", "replace"))
        if state.trace is None:
            raise ValueError("there is no upload; measured costs need a trace")
        text = dump_calibration(measured(state.trace).calibration)
        return f"{text}\n".encode(), "calibration.json"

    return answer(make, ".json")


def _bands(state: MeasureState, one: Measured) -> tuple[list[Band], Timeline]:
    """Measured over simulated, and another schedule below; and what is simulated."""
    simulated, name = one.replayed, "simulated: its rows on its own costs"
    if state.run is not None:
        other = uploaded(state.run)
        simulated, name = other.timeline, f"simulated: {other.name}"
    bands = [
        Band("measured", one.timeline, _note(one.timeline)),
        Band(name, simulated, _note(simulated)),
    ]
    if state.schedule:
        found = [p for p in predictions(str(state.trace)) if p.schedule == state.schedule]
        if not found or found[0].timeline is None:
            reason = found[0].reason if found else "it is unknown"
            raise ValueError(f"{state.schedule} cannot be predicted on these costs: {reason}")
        made = found[0].timeline
        bands.append(Band(f"{state.schedule} on the measured costs", made, _note(made)))
    return bands, simulated


def _note(timeline: Timeline) -> str:
    return f"step {time_unit(timeline.makespan).text(timeline.makespan)}"


def _finding(one: Measured, simulated: Timeline, *, own: bool) -> str:
    share = 100 * (simulated.makespan / one.timeline.makespan - 1)
    what = "Its own rows on its measured costs take" if own else "The simulation takes"
    if abs(share) < 0.05:
        return f"{what} as long as was measured."
    return f"{what} {abs(share):.1f} % {'longer' if share > 0 else 'less'} than was measured."

"""Measure: the upload on the left; measured over simulated, errors by op, predictions."""

from collections.abc import Sequence
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.layout.compare import grid_class
from dashboard.layout.plain import BLANK, STILL, ZOOMED, attributes
from dashboard.layout.upload import drop
from dashboard.measurement import Measured, MeasureState, Prediction
from dashboard.theme import Look
from traces.labels import time_unit

__all__ = ["calibration_rows", "layout", "notes", "prediction_rows"]

TRACE, RUN, FIGURE, ERRORS, COSTS, PREDICTIONS, FINDING, NOTES, SCHEDULE, RESULTS, VIEW, EXPORTS = (
    "measure-trace",  # store: the token of what is shown
    "measure-run",  # store: the token of what it is laid over
    "measure-figure",
    "measure-errors",
    "measure-costs",
    "measure-predictions",
    "measure-finding",
    "measure-notes",
    "measure-schedule",
    "measure-results",
    "measure-view",
    "measure-exports",
)
OWN = "measure-own"
GUESSED = (
    "Where whole backwards alone were measured, I and W count as half of B each. DualPipe and "
    "Chimera hold every stage twice."
)
WIDTHS = {  # of the tables' columns, at the least [pixel]
    "stage": 58,
    "op": 48,
    "median": 84,
    "quartiles": 148,
    "count": 60,
    "schedule": 116,
    "step": 84,
    "against measured": 150,
}
UPLOAD, OTHER = "measure-trace-file", "measure-run-file"


def layout(state: MeasureState, look: Look) -> Any:  # noqa: ANN401 - a component
    """The page; what was measured comes with the first update."""
    return html.Div(
        [
            dcc.Store(id=TRACE, data=state.trace),
            dcc.Store(id=RUN, data=state.run),
            dcc.Store(id=VIEW, data=state.view),
            html.Aside(
                [
                    _section(
                        "Measured",
                        [
                            drop(UPLOAD, "Choose or drop a saved run, or the traces of all ranks"),
                            html.P(
                                "A saved run of ours; traces of PyTorch's profiler, one file for "
                                "each pipeline rank; other trace-event JSON whose ranges are named "
                                "as PyTorch's runtime names them.",
                                className="muted small",
                            ),
                            html.Div(id=NOTES),
                        ],
                    ),
                    _section(
                        "Simulated",
                        [
                            html.P(
                                "Its own rows on the costs measured in it, or a saved run:",
                                className="muted small",
                            ),
                            drop(OTHER, "Choose or drop a saved run to lay it over"),
                            dmc.Button(
                                "Back to its own costs",
                                id=OWN,
                                size="compact-sm",
                                variant="light",
                                disabled=state.run is None,
                            ),
                        ],
                    ),
                    _section(
                        "Apply the calibration",
                        [
                            dmc.Select(
                                id=SCHEDULE,
                                label="another schedule on the measured costs",
                                data=[],
                                value=state.schedule,
                                placeholder="none",
                                clearable=True,
                                size="xs",
                            ),
                            html.Div(id=EXPORTS, className="exports"),
                        ],
                    ),
                ],
                className="job",
                **attributes({"aria-label": "what was measured"}),
            ),
            html.Section(
                [
                    html.P(id=FINDING, className="finding", **attributes({"aria-live": "polite"})),
                    html.Div(_results(look), id=RESULTS, className="measure-results"),
                    html.Div(_ways(), className="measure-start card"),
                ],
                className="results",
            ),
        ],
        className="explore",
    )


def notes(one: Measured) -> list[Any]:
    """What is shown, and what the trace could not tell."""
    timeline = one.timeline
    facts = (
        f"{timeline.num_ranks} ranks, {timeline.num_stages} stages, {timeline.num_spans:,} spans, "
        f"{time_unit(timeline.makespan).text(timeline.makespan)}"
    )
    return [html.Strong(one.name, className="file-name"), html.P(facts, className="small")] + [
        html.P(note, className="muted small") for note in one.notes
    ]


def calibration_rows(one: Measured) -> list[dict[str, Any]]:
    """The measured costs, an op of a stage a row."""
    unit = time_unit(max(op.seconds for op in one.calibration.ops))
    return [
        {
            "stage": op.stage,
            "op": op.kind,
            "median": unit.text(op.seconds),
            "quartiles": f"{unit.text(op.low)} to {unit.text(op.high)}",
            "count": op.count,
        }
        for op in one.calibration.ops
    ]


def prediction_rows(one: Measured, found: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Schedules on the measured costs beside the measured step."""
    measured = one.timeline.makespan
    rows = []
    for prediction in found:
        step = None if prediction.timeline is None else prediction.timeline.makespan
        rows.append(
            {
                "schedule": prediction.schedule,
                "step": "-" if step is None else time_unit(measured).text(step),
                "against measured": prediction.reason
                if step is None
                else f"{100 * (step / measured - 1):+.1f} %",
            }
        )
    return rows


def _results(look: Look) -> list[Any]:
    return [
        html.Div(dcc.Graph(id=FIGURE, figure=BLANK, config=ZOOMED),
                        className="card tight"),
        html.Div(
            [
                html.H2("Errors by op: simulated over measured, median and quartiles"),
                dcc.Graph(id=ERRORS, figure=BLANK, config=STILL),
            ],
            className="card",
        ),
        html.Div(
            [
                html.Div(
                    [html.H2("Measured costs"), _table(COSTS, look, ["stage", "op", "median",
                     "quartiles", "count"])],
                    className="card",
                ),
                html.Div(
                    [html.H2("Every schedule on these costs"), html.P(GUESSED,
                     className="muted small"), _table(PREDICTIONS, look,
                     ["schedule", "step", "against measured"])],
                    className="card",
                ),
            ],
            className="two",
        ),
    ]  # fmt: skip


def _table(name: str, look: Look, fields: Sequence[str]) -> Any:  # noqa: ANN401 - a component
    columns: list[dict[str, Any]] = [
        {"field": field, "headerName": field, "flex": WIDTHS[field], "minWidth": WIDTHS[field]}
        for field in fields
    ]
    columns[-1]["tooltipField"] = fields[-1]
    return dag.AgGrid(
        id=name,
        rowData=[],
        columnDefs=columns,
        defaultColDef={"sortable": False, "resizable": True},
        dashGridOptions={"rowHeight": 30, "headerHeight": 34},
        className=grid_class(look),
        style={"width": "100%", "height": 340},
    )


def _ways() -> list[Any]:
    """How to come by a file, for whoever has none."""
    return [
        html.H2("Where a trace comes from"),
        html.Ul(
            [
                html.Li(
                    [
                        "Your training: record a step with torch.profiler on every pipeline rank, ",
                        html.Code("export_chrome_trace"),
                        " each to a file, and drop all of them at once.",
                    ]
                ),
                html.Li(
                    [
                        "Traces that are too large for this page: ",
                        html.Code("bubblescope trace rank*.json.gz -o measured.json"),
                        " makes one small file of them.",
                    ]
                ),
                html.Li(
                    [
                        "To try the page without any: ",
                        html.Code("bubblescope simulate JOB.toml -o run.json"),
                        " saves a simulated run.",
                    ]
                ),
            ]
        ),
    ]


def _section(heading: str, children: list[Any]) -> Any:  # noqa: ANN401 - a component
    return dmc.Stack([html.H2(heading), *children], gap="sm", className="section")

"""Compare: the runs on the left, all of them on one time axis and in one table on the right."""

from collections.abc import Sequence
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.comparison import FIELDS, MOST_RUNS, Compared, CompareState, Entry
from dashboard.layout.plain import BLANK, ZOOMED, attributes, number, problem
from dashboard.layout.upload import drop
from dashboard.theme import Look
from simulator.job import Plan
from simulator.load import preset_names
from simulator.schedules import schedules

__all__ = ["columns", "field_id", "layout", "runs"]

PAGE = "compare"
COSTS, MODEL, CLUSTER, LATENCY = (
    "compare-costs",
    "compare-model",
    "compare-cluster",
    "compare-latency",
)
TIMES = {"forward": "compare-f", "input_grad": "compare-i", "weight_grad": "compare-w"}
RUNS, ADD, FULL, FIGURE, TABLE, VIEW, FINDING, TEXTBOOK, REAL, DONE = (
    "compare-runs",
    "compare-add",
    "compare-full",  # that there can be no more runs
    "compare-figure",
    "compare-table",
    "compare-view",  # store: the part of the time axis that is looked at [s]
    "compare-finding",
    "compare-textbook",
    "compare-real",
    "compare-done",  # store: the costs, the clicks on "add" and the uploads that the cards show
)
SHORT = {"num_microbatches": "microbatches", "micro_batch_size": "sequences"}


def field_id(run: Any, name: Any) -> dict[str, Any]:  # noqa: ANN401 - a number, or dash's ALL
    """A field of a run."""
    return {"compare": "field", "run": run, "name": name}


def part_id(part: str, run: Any) -> dict[str, Any]:  # noqa: ANN401 - a number, or dash's ALL
    """Another part of a run: `token`, `error`, `remove`."""
    return {"compare": part, "run": run}


def layout(state: CompareState, look: Look) -> Any:  # noqa: ANN401 - a component
    """The page; figure and table come with the first update."""
    return html.Div(
        [
            dcc.Store(id=VIEW, data=state.view),
            dcc.Store(id=DONE, data={"costs": state.costs}),
            html.Aside(
                [
                    _section("Costs", _costs(state)),
                    _section(
                        f"Runs, up to {MOST_RUNS}",
                        [
                            html.Div(runs(state.runs, state.costs), id=RUNS),
                            dmc.Button("Add a run", id=ADD, variant="light", size="compact-sm"),
                            html.Div(id=FULL),
                        ],
                    ),
                    _section(
                        "Saved and measured runs",
                        [drop(PAGE, "Add a saved run, or a trace's files")],
                    ),
                ],
                className="job",
                **attributes({"aria-label": "what is compared"}),
            ),
            html.Section(
                [
                    html.P(id=FINDING, className="finding", **attributes({"aria-live": "polite"})),
                    html.Div(
                        dcc.Graph(id=FIGURE, figure=BLANK, config=ZOOMED),
                        className="card tight",
                    ),
                    html.Div(_table(look), className="card tight"),
                ],
                className="results",
            ),
        ],
        className="explore",
    )


def runs(entries: Sequence[Entry], costs: str) -> list[Any]:
    """A card for each run, with its fields."""
    return [_run(at, entry, costs) for at, entry in enumerate(entries)]


def columns(found: Sequence[Compared]) -> list[dict[str, Any]]:
    """The table's columns: the figure's name, then a run each; the best cell is marked."""
    first = {"field": "figure", "headerName": "figure", "pinned": "left", "width": 210}
    marked = [
        {
            "condition": f"params.data.best === 'run{at}'",
            "style": {"fontWeight": 700, "textDecoration": "underline"},
        }
        for at in range(len(found))
    ]
    others = [
        {
            "field": f"run{at}",
            "headerName": one.name,
            "headerTooltip": one.name,
            "type": "rightAligned",
            "flex": 1,
            "minWidth": 120,
            "cellStyle": {"styleConditions": [marked[at]]},
        }
        for at, one in enumerate(found)
    ]
    return [first, *others]


def _section(heading: str, children: list[Any]) -> Any:  # noqa: ANN401 - a component
    return dmc.Stack([html.H2(heading), *children], gap="sm", className="section")


def _costs(state: CompareState) -> list[Any]:
    kinds = [
        {"value": "textbook", "label": "textbook"},
        {"value": "model", "label": "a model on a cluster"},
    ]
    words = {"forward": "F", "input_grad": "I", "weight_grad": "W"}
    times = [number(TIMES[name], words[name], getattr(state, name), whole=False) for name in TIMES]
    uniform = [
        html.P(
            "Equal stages: F forward, I backward for the input, W for the weights, of one "
            "microbatch on one rank.",
            className="muted small",
        ),
        html.Div(
            [*times, number(LATENCY, "message", state.latency, whole=False)], className="fields"
        ),
    ]
    real = [
        dmc.Select(
            id=MODEL, label="model", data=list(preset_names("models")), value=state.model,
            searchable=True, allowDeselect=False, size="xs",
        ),
        dmc.Select(
            id=CLUSTER, label="cluster", data=list(preset_names("clusters")), value=state.cluster,
            searchable=True, allowDeselect=False, size="xs",
        ),
    ]  # fmt: skip
    is_textbook = state.costs == "textbook"
    return [
        dmc.SegmentedControl(id=COSTS, value=state.costs, data=kinds, size="xs", fullWidth=True),
        dmc.Stack(uniform, id=TEXTBOOK, gap="xs", display="flex" if is_textbook else "none"),
        dmc.Stack(real, id=REAL, gap="xs", display="none" if is_textbook else "flex"),
    ]


def _run(at: int, entry: Entry, costs: str) -> Any:  # noqa: ANN401 - a component
    remove = html.Button(
        "×",  # noqa: RUF001 - the usual sign
        id=part_id("remove", at),
        className="remove",
        title="remove this run",
        **attributes({"aria-label": f"remove run {at + 1}", "type": "button"}),
    )
    head = html.Div([html.Strong(f"{at + 1}"), remove], className="run-head")
    body = [_upload()] if entry.token else _fields(at, entry, costs)
    return html.Div(
        [
            dcc.Store(id=part_id("token", at), data=entry.token),
            head,
            *body,
            html.Div(id=part_id("error", at)),
        ],
        className="run",
    )


def _upload() -> Any:  # noqa: ANN401 - a component
    return html.P("an uploaded run", className="muted small")


def _fields(at: int, entry: Entry, costs: str) -> list[Any]:
    names = FIELDS[costs]
    plan = {**{name: Plan.model_fields[name].default for name in names}, **entry.plan}
    chosen = dmc.Select(
        id=field_id(at, "schedule"),
        data=list(schedules()),
        value=str(plan["schedule"]),
        searchable=True,
        allowDeselect=False,
        size="xs",
        **attributes({"aria-label": f"schedule of run {at + 1}"}),
    )
    fields = [
        number(field_id(at, name), SHORT.get(name, name), plan[name])
        for name in names
        if name not in ("schedule", "recompute")
    ]
    if "recompute" in names:
        fields.append(
            dmc.Select(
                id=field_id(at, "recompute"),
                label="recompute",
                data=["none", "selective", "alternate", "full"],
                value=str(plan["recompute"]),
                allowDeselect=False,
                size="xs",
            )
        )
    return [chosen, html.Div(fields, className="fields")]


def _table(look: Look) -> Any:  # noqa: ANN401 - a component
    return dag.AgGrid(
        id=TABLE,
        rowData=[],
        columnDefs=[],
        defaultColDef={"sortable": False, "resizable": True, "suppressMovable": True},
        columnSize="responsiveSizeToFit",
        dashGridOptions={"domLayout": "autoHeight", "rowHeight": 30, "headerHeight": 36},
        className=grid_class(look),
        style={"width": "100%", "height": None},
    )


def grid_class(look: Look) -> str:
    """The table's look in a theme."""
    return "ag-theme-quartz-dark" if look.name == "dark" else "ag-theme-quartz"


def error_of(one: Compared) -> Any:  # noqa: ANN401 - a component
    """What is wrong with a run, under it."""
    return problem(one.error)

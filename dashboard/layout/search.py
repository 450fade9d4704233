"""Search: what to search on the left; progress, front and best plans on the right."""

from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.jobs import ABANDONED, MOST_RUNNING, MOST_SECONDS, Told
from dashboard.layout.compare import grid_class
from dashboard.layout.plain import BLANK, STILL, attributes, number, problem, queued
from dashboard.planning import BY, MOST_POINTS, SearchState, knob_words
from dashboard.theme import Look
from simulator.load import preset_names
from simulator.schedules import schedules

__all__ = ["chosen", "columns", "layout", "progress"]

MODEL, CLUSTER, GPUS, BATCH, SEQ_LEN = (
    "search-model",
    "search-cluster",
    "search-gpus",
    "search-batch",
    "search-seq-len",
)
SCHEDULES, RECOMPUTE, START, CANCEL, WRONG, PROBLEM, RANKING = (
    "search-schedules",
    "search-recompute",
    "search-start",
    "search-cancel",
    "search-wrong",  # with what is to be searched
    "search-problem",  # with starting it
    "search-by",
)
JOB, TICK, BEAT, PROGRESS, FRONT, TABLE, CHOSEN = (
    "search-job",  # store: the token of the search
    "search-tick",  # store: when the search was looked at; set by assets/pace.js
    "search-beat",  # store: when to look at it again
    "search-progress",
    "search-front",
    "search-table",
    "search-chosen",
)
EVERY = 800  # from an answer to the next look at a running search [ms]
LABELS = {"tp": "tp", "pp": "pp", "vpp": "vpp", "micro_batch_size": "microbatch"}
WIDTHS = {  # of the table's columns that hold more than a small number [pixel]
    "step": 88, "tokens/s": 98, "MFU": 84, "bubble": 84, "free": 90, "peak": 90,
    "GPU h / M tokens": 150, "recompute": 106, "microbatch": 106, "layers": 94, "schedule": 116,
}  # fmt: skip
STATES = {
    "waiting": "waiting",
    "running": "searching",
    "done": "done",
    "cancelled": "cancelled; what was found stays",
    "abandoned": "ended, for no page looked at it any more; what was found stays",
    "out of time": f"ended after {MOST_SECONDS / 60:.0f} minutes; what was found stays",
    "failed": "failed",
}


def knob_id(name: Any) -> dict[str, Any]:  # noqa: ANN401 - a name, or dash's ALL
    """A knob whose values are typed."""
    return {"search": "knob", "name": name}


def layout(state: SearchState, look: Look) -> Any:  # noqa: ANN401 - a component
    """The page; what a search found comes with the first look at it."""
    return html.Div(
        [
            dcc.Store(id=JOB, data=state.job),
            dcc.Store(id=TICK),
            dcc.Store(id=BEAT),
            html.Aside(
                [
                    _section("Job", _job(state)),
                    _section("Knobs: values to try", _knobs(state)),
                    _section("Search", _buttons()),
                ],
                className="job",
                **attributes({"aria-label": "what is searched"}),
            ),
            html.Section(
                [
                    html.Div(progress(None), id=PROGRESS, className="card"),
                    html.Div(
                        [
                            html.H2("Plans that none beats in speed and free memory at once"),
                            dcc.Graph(id=FRONT, figure=BLANK, config=STILL),
                            html.Div(
                                id=CHOSEN, className="chosen", **attributes({"aria-live": "polite"})
                            ),
                        ],
                        className="card",
                    ),
                    html.Div([_ranking(state), _table(look)], className="card"),
                ],
                className="results",
            ),
        ],
        className="explore",
    )


def progress(told: Told | None) -> list[Any]:
    """How far a search is, and what became of the plans."""
    if told is None:
        return [
            html.H2("No search yet", className="nothing-found"),
            html.P("Start judges every plan of the knobs: illegal ones and those that cannot fit "
                   "are dropped with the reason, those proven to be slower are skipped, all others "
                   "are simulated. The best plans and their Pareto front grow here while it runs.",
                   className="muted"),
        ]  # fmt: skip
    found = told.result
    if not found:
        words = told.error or queued(told) or STATES[told.state]
        return [
            html.H2("Search", className="nothing-found"),
            problem(words) if told.error else html.P(words),
        ]
    share = 100 * found["num_judged"] / max(found["num_points"], 1)
    left = found.get("seconds_left")
    rest = f", about {left:.0f} s left" if told.is_running and left else ""
    words = (
        f"{found['num_judged']:,} of {found['num_points']:,} plans judged, "
        f"{found['num_simulated']:,} simulated, {found['num_front']:,} on the front; "
        f"{found['rate']:,.0f} a second{rest}"
    )
    dropped = [
        html.Tr([html.Td(f"{count:,}"), html.Td(reason)])
        for reason, count in found["dropped"].items()
    ]
    return [
        html.Div(
            [html.H2(STATES[told.state].capitalize()), html.Span(words, className="muted")],
            className="progress-head",
        ),
        dmc.Progress(
            value=share,
            size="lg",
            animated=told.is_running,
            color="accent" if told.is_running or told.state == "done" else "gray",
            **attributes({"aria-label": "plans judged"}),
        ),
        problem(told.error),
        html.Details(
            [html.Summary("Why plans were dropped"), html.Table(html.Tbody(dropped))],
            className="dropped",
        ),
    ]


def columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table's columns: those that the rows have, the link first."""
    names = [name for name in (rows[0] if rows else {}) if name not in ("point", "open")]
    link = {
        "field": "open",
        "headerName": "open in",
        "cellRenderer": "markdown",
        "pinned": "left",
        "width": 92,
    }
    return [
        link,
        *({"field": name, "headerName": name, "width": WIDTHS.get(name, 72)} for name in names),
    ]


def chosen(point: Mapping[str, Any] | None) -> list[Any]:
    """A plan of the front that was clicked."""
    if point is None:
        return [html.Span("Click a point to see its plan.", className="muted")]
    return [
        html.Strong(knob_words(point["knobs"])),
        html.Span(
            f"{point['tokens_per_second']:,.0f} tokens/s, {point['headroom'] / 1e9:.1f} GB free"
        ),
        html.A("Open in Explore", href=point["explore"]),
    ]


def _section(heading: str, children: list[Any]) -> Any:  # noqa: ANN401 - a component
    return dmc.Stack([html.H2(heading), *children], gap="sm", className="section")


def _job(state: SearchState) -> list[Any]:
    return [
        dmc.Select(
            id=MODEL, label="model", data=list(preset_names("models")), value=state.model,
            searchable=True, allowDeselect=False, size="xs",
        ),
        dmc.Select(
            id=CLUSTER, label="cluster", data=list(preset_names("clusters")), value=state.cluster,
            searchable=True, allowDeselect=False, size="xs",
        ),
        html.Div(
            [
                number(GPUS, "GPUs", state.num_gpus),
                number(BATCH, "sequences", state.global_batch_size),
                number(SEQ_LEN, "tokens", state.seq_len),
            ],
            className="fields",
        ),
        html.P(
            "Sequences in one step; tokens in one sequence, the model's own when left empty.",
            className="muted small",
        ),
    ]  # fmt: skip


def _knobs(state: SearchState) -> list[Any]:
    typed = [
        dmc.TextInput(
            id=knob_id(name),
            label=label,
            value=",".join(map(str, getattr(state, name) or ())),
            placeholder="all",
            debounce=300,
            size="xs",
        )
        for name, label in LABELS.items()
    ]
    return [
        html.Div(typed, className="fields two-wide"),
        dmc.MultiSelect(
            id=SCHEDULES, label="schedules", data=list(schedules()),
            value=list(state.schedule or ()), placeholder="all synchronous ones", size="xs",
        ),
        dmc.MultiSelect(
            id=RECOMPUTE, label="recompute", data=["none", "selective", "alternate", "full"],
            value=list(state.recompute or ()), placeholder="all", size="xs",
        ),
    ]  # fmt: skip


def _buttons() -> list[Any]:
    return [
        dmc.Group(
            [
                dmc.Button("Start", id=START, size="sm"),
                dmc.Button("Cancel", id=CANCEL, size="sm", variant="default", disabled=True),
            ]
        ),
        html.Div(id=WRONG),
        html.Div(id=PROBLEM),
        html.P(
            f"At most {MOST_POINTS / 1e6:.0f} million plans and {MOST_SECONDS / 60:.0f} minutes; "
            f"{MOST_RUNNING} searches run on this server at once, others wait for their turn. "
            f"A search ends {ABANDONED:.0f} s after its page was closed.",
            className="muted small",
        ),
    ]


def _ranking(state: SearchState) -> Any:  # noqa: ANN401 - a component
    return dmc.Group(
        [
            html.H2("Best by"),
            dmc.SegmentedControl(
                id=RANKING,
                value=state.by,
                data=[{"value": value, "label": label} for value, label in BY.items()],
                size="xs",
            ),
        ],
        mb="xs",
    )


def _table(look: Look) -> Any:  # noqa: ANN401 - a component
    return dag.AgGrid(
        id=TABLE,
        rowData=[],
        columnDefs=[],
        defaultColDef={"sortable": False, "resizable": True},
        dashGridOptions={
            "domLayout": "autoHeight",
            "rowHeight": 30,
            "headerHeight": 36,
        },
        className=grid_class(look),
        style={"width": "100%", "height": None},
    )

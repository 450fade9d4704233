"""Design: rows as text and as a grid, what they lead to, and the optimiser."""

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.design import DesignState, rows_text
from dashboard.jobs import Told
from dashboard.layout.plain import BLANK, ZOOMED, attributes, number, problem, queued
from dashboard.theme import Look
from simulator.schedules import schedules

__all__ = ["headline", "improvement", "layout"]

SCHEDULE, LOAD, ROWS, GRID, CELLS, TOOL, FIGURE, RESULT, ERROR = (
    "design-schedule",
    "design-load",
    "design-rows",
    "design-grid",
    "design-cells",  # store: what the grid shows; drawn by assets/design.js
    "design-tool",
    "design-figure",
    "design-result",
    "design-error",
)
SIZES = {"pp": "design-pp", "vpp": "design-vpp", "m": "design-m"}
TIMES = {"f": "design-f", "i": "design-i", "w": "design-w", "latency": "design-latency"}
LIMIT, SECONDS, START, CANCEL, JOB, TICK, BEAT, PROGRESS, TAKE, EXPORTS, SPACE, VIEW = (
    "design-limit",
    "design-seconds",
    "design-start",
    "design-cancel",
    "design-job",  # store: the optimiser's token
    "design-tick",  # store: when the optimiser was looked at; set by assets/pace.js
    "design-beat",  # store: when to look at it again
    "design-progress",
    "design-take",
    "design-exports",
    "design-space",
    "design-view",
)
TEXT = "design-text"  # store: the rows as they run; a moment after the last key
TOOLS = {
    "F": "F",
    "B": "B",
    "I": "I",
    "W": "W",
    "erase": "erase",
    "earlier": "◀ earlier",
    "later": "later ▶",
}
EVERY = 700  # from an answer to the next look at the optimiser [ms]


def layout(state: DesignState, look: Look) -> Any:  # noqa: ANN401, ARG001 - a component
    """The page; grid and figure come with the first update."""
    return html.Div(
        [
            dcc.Store(id=CELLS),
            dcc.Store(id=TEXT, data=_text(state)),
            dcc.Store(id=JOB, data=state.job),
            dcc.Store(id=VIEW, data=state.view),
            dcc.Store(id=TICK),
            dcc.Store(id=BEAT),
            html.Aside(
                [
                    _section("Start from", _start(state)),
                    _section("Times", _times(state)),
                    _section("Let the optimiser improve it", _optimiser(state)),
                    _section(
                        "Take it with you",
                        [
                            html.P(
                                "Rows as torch.distributed.pipelining loads them, compute only or "
                                "with sends and receives; or a picture.",
                                className="muted small",
                            ),
                            html.Div(id=EXPORTS, className="exports"),
                        ],
                    ),
                ],
                className="job",
                **attributes({"aria-label": "start, times, optimiser and exports"}),
            ),
            html.Section(
                [
                    html.Div(id=RESULT, className="finding", **attributes({"aria-live": "polite"})),
                    html.Div(id=ERROR),
                    html.Div(
                        dcc.Graph(id=FIGURE, figure=BLANK, config=ZOOMED),
                        id=SPACE,
                        className="card tight",
                    ),
                    html.Div(
                        [_palette(), html.Div(id=GRID, className="op-grid")], className="card"
                    ),
                    html.Div(_editor(state), className="card"),
                ],
                className="results",
            ),
        ],
        className="explore",
    )


def headline(words: str) -> Any:  # noqa: ANN401 - a component
    """What the rows lead to."""
    return html.Span(words)


def improvement(told: Told | None, step: float | None) -> list[Any]:
    """How far the optimiser is."""
    if told is None:
        return []
    found = told.result
    if told.error:
        return [problem(told.error)]
    if not found:
        return [html.P(queued(told) or told.state, className="small")]
    best, bound = found["objective"], found["bound"]
    gap = 100 * (best - bound) / best if best else 0.0
    proof = "proven best" if found.get("proven") else f"at most {gap:.1f} % from best"
    against = "" if step is None else f"; your rows take {step:g}"
    return [
        html.P(
            f"{'Best so far' if told.is_running else 'Best found'}: {best:.6g}, {proof}{against}."
        ),
        html.P(f"bound {bound:.6g}, {found['seconds']:.1f} s", className="muted small"),
    ]


def _section(heading: str, children: list[Any]) -> Any:  # noqa: ANN401 - a component
    return dmc.Stack([html.H2(heading), *children], gap="sm", className="section")


def _start(state: DesignState) -> list[Any]:
    words = {"pp": "ranks", "vpp": "chunks", "m": "microbatches"}
    return [
        dmc.Select(
            id=SCHEDULE, data=list(schedules()), value=state.schedule, searchable=True,
            allowDeselect=False, size="xs", **attributes({"aria-label": "schedule to start from"}),
        ),
        html.Div(
            [number(SIZES[name], words[name], getattr(state, name)) for name in SIZES],
            className="fields",
        ),
        dmc.Button("Load its rows", id=LOAD, size="compact-sm", variant="light"),
    ]  # fmt: skip


def _times(state: DesignState) -> list[Any]:
    words = {"f": "F", "i": "I", "w": "W", "latency": "message"}
    boxes = [number(TIMES[n], words[n], getattr(state, n), whole=False) for n in TIMES]
    return [html.Div(boxes, className="fields two-wide")]


def _optimiser(state: DesignState) -> list[Any]:
    return [
        html.Div(
            [
                number(LIMIT, "memory limit", state.limit, "microbatches held", whole=False),
                number(SECONDS, "time limit", state.seconds, "seconds, up to 120", whole=False),
            ],
            className="fields two-wide",
        ),
        dmc.Group(
            [
                dmc.Button("Improve", id=START, size="compact-sm"),
                dmc.Button(
                    "Cancel", id=CANCEL, size="compact-sm", variant="default", disabled=True
                ),
                dmc.Button(
                    "Use these rows", id=TAKE, size="compact-sm", variant="light", disabled=True
                ),
            ],
            gap="xs",
        ),
        html.Div(id=PROGRESS, className="improvement", **attributes({"aria-live": "polite"})),
    ]


def _palette() -> Any:  # noqa: ANN401 - a component
    return html.Div(
        [
            html.H2("Rows"),
            dmc.SegmentedControl(
                id=TOOL,
                value="F",
                data=[{"value": value, "label": label} for value, label in TOOLS.items()],
                size="xs",
            ),
            html.Span(
                "Click a cell to put the next such op before it. Keys: arrows, F B I W, Delete, "
                "Shift + arrow to move.",
                className="muted small",
            ),
        ],
        className="palette",
    )


def _text(state: DesignState) -> str:
    """The rows, as far as there are any; what is wrong with the sizes is told by the update."""
    try:
        return rows_text(state)
    except ValueError:
        return ""


def _editor(state: DesignState) -> Any:  # noqa: ANN401 - a component
    return dmc.Textarea(
        id=ROWS,
        label="Rows as text",
        description="A line a rank; an op is stage, kind and microbatch, as in 2F0. F forward, B "
        "backward, or I and W, its halves for the input and the weights.",
        value=_text(state),
        autosize=True,
        minRows=4,
        maxRows=14,
        spellCheck=False,
        classNames={"input": "rows-text"},
    )

"""Explore: the job on the left, what it leads to on the right."""

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.answer import answer, key_of
from dashboard.exploration import ExploreState
from dashboard.layout.fields import LADDERS, groups, plan_fields
from dashboard.layout.graph import GRAPH
from dashboard.layout.markup import Markup
from dashboard.layout.plain import BLANK
from dashboard.theme import Look
from simulator.job import Plan
from simulator.load import preset_names

__all__ = ["layout", "more_fields"]

JOB: Any = {"aria-label": "the job"}
POLITE: Any = {"aria-live": "polite"}

REQUEST, VIEW, SPOT, PROBLEMS = (
    "explore-request",  # store: what the controls say; set by assets/explore.js
    "explore-view",  # store: what the page was opened with
    "explore-spot",  # store: where the timeline was clicked
    "explore-problems",  # store: fields that are marked
)
MODEL, CLUSTER, SEQ_LEN = "explore-model", "explore-cluster", "explore-seq-len"
PASTE, CONFIG = "explore-paste", "explore-config"
TOKENS, PRICE = "explore-tokens", "explore-price"
CRITICAL, GROUP, WHOLE = "explore-critical", "explore-group", "explore-whole"
RUN, SPLIT, GRID = "explore-run", "explore-split", "explore-grid"
RESULTS, HEADLINE, LEGEND, SPLIT_KEY, INSPECTOR, GAPS = (
    "explore-results",
    "explore-headline",
    "explore-legend",
    "explore-split-key",
    "explore-inspector",
    "explore-gaps",
)
MORE = "explore-more"
FIRST = "Pipeline"  # the heading whose fields stand at once
LOW, GPUS = {"height": 260}, {"height": 300}
EMPTY: tuple[Any, ...] = (BLANK, "", "", BLANK, "", BLANK, "", [], {"height": 420}, {})


def layout(state: ExploreState, look: Look) -> Any:  # noqa: ANN401 - a component
    """The page with its figures; if the job cannot run, the first update says why."""
    try:
        shown = answer(state, look)
    except ValueError:
        shown = None
    view = {
        "window": state.window,
        "ranks": state.ranks,
        "bubble": state.bubble,
        "plan": state.plan,
        "defaults": {name: field.default for name, field in Plan.model_fields.items()},
        "ladders": LADDERS,
        "answered": shown is not None,
        "theme": look.name,
        "there": shown[-1] if shown is not None else {},
        "key": key_of(state) if shown is not None else None,
        "state": state.model_dump(mode="json"),
    }
    return html.Div(
        [
            dcc.Store(id=REQUEST),
            dcc.Store(id=VIEW, data=view),
            dcc.Store(id=SPOT),
            dcc.Store(id=PROBLEMS),
            dcc.Store(id=CONFIG, data=state.config),
            html.Aside(_job(state), className="job", **JOB),
            html.Section(_results(state, shown or EMPTY), id=RESULTS, className="results"),
        ],
        className="explore",
    )


def more_fields(state: ExploreState) -> list[Any]:
    """The controls that are put in once the page stands, so that it stands sooner."""
    sections = {name: plan_fields(state, names) for name, names in groups().items()}
    last = dmc.Accordion(
        dmc.AccordionItem(
            [
                dmc.AccordionControl("More fields of the plan"),
                dmc.AccordionPanel(dmc.Stack(sections["More"], gap="sm")),
            ],
            value="more",
        ),
        className="more",
    )
    return [
        *(_section(name, sections[name]) for name in sections if name not in (FIRST, "More")),
        last,
    ]


def _job(state: ExploreState) -> list[Any]:
    """The controls that stand at once."""
    first = _section(FIRST, plan_fields(state, groups()[FIRST]))
    rest = html.Div(id=MORE)
    return [_section("Model and cluster", _hardware(state)), first, _training(state), rest]


def _section(heading: str, children: list[Any]) -> Any:  # noqa: ANN401 - a component
    return dmc.Stack([html.H2(heading), *children], gap="sm", className="section")


def _hardware(state: ExploreState) -> list[Any]:
    models, clusters = list(preset_names("models")), list(preset_names("clusters"))
    paste = dmc.Textarea(
        id=PASTE,
        label="config.json",
        description="of a Hugging Face model, pasted whole; at most 256,000 characters",
        placeholder='{"model_type": "llama", ...}',
        autosize=True,
        minRows=3,
        maxRows=10,
        debounce=400,
        size="xs",
        value="",
    )
    return [
        dmc.Select(
            id=MODEL,
            label="model",
            description="a preset; or paste a config.json below",
            data=models,
            value=state.model if state.config is None else None,
            placeholder="pasted model" if state.config is not None else "choose a model",
            searchable=True,
            size="xs",
        ),
        dmc.Accordion(
            dmc.AccordionItem(
                [dmc.AccordionControl("Paste a config.json"), dmc.AccordionPanel(paste)],
                value="paste",
            ),
            className="more",
        ),
        dmc.NumberInput(
            id=SEQ_LEN,
            label="seq_len",
            description="tokens in one sequence; the model's own when empty [1]",
            value=state.seq_len if state.seq_len is not None else "",
            clampBehavior="none",
            debounce=300,
            size="xs",
        ),
        dmc.Select(
            id=CLUSTER,
            label="cluster",
            description="nodes, GPUs and links; as many nodes as the plan fills",
            data=clusters if state.cluster in clusters else [*clusters, state.cluster],
            value=state.cluster,
            allowDeselect=False,
            size="xs",
        ),
    ]


def _training(state: ExploreState) -> Any:  # noqa: ANN401 - a component
    fields = ExploreState.model_fields
    tokens = dmc.NumberInput(
        id=TOKENS,
        label="tokens",
        description=fields["tokens"].description,
        value=state.tokens,
        thousandSeparator=",",
        clampBehavior="none",
        debounce=300,
        size="xs",
    )
    price = dmc.NumberInput(
        id=PRICE,
        label="price",
        description=fields["price"].description,
        value=state.price,
        clampBehavior="none",
        debounce=300,
        size="xs",
    )
    return _section("Training", [tokens, price])


def _button(text: str, name: str, about: str) -> Any:  # noqa: ANN401 - a component
    return dmc.Button(
        text,
        id=name,
        variant="default",
        size="compact-xs",
        attributes={"root": {"aria-label": about, "title": about}},
    )


def _results(state: ExploreState, shown: tuple[Any, ...]) -> list[Any]:
    figure, tiles, kinds, split, causes, gpus, gaps, words, style, _ = shown
    still = GRAPH | {"displayModeBar": False}
    graph = still | {"scrollZoom": True, "doubleClick": False}
    tools = dmc.Group(
        [
            Markup(html=kinds, id=LEGEND, className="legend"),
            dmc.Group(
                [
                    dmc.Switch(
                        id=CRITICAL, label="Critical path", checked=state.critical, size="xs"
                    ),
                    dmc.ButtonGroup(
                        [
                            _button("\u25c0", "pan-back", "show what is earlier"),
                            _button("\u25b6", "pan-on", "show what is later"),
                            _button("\u2212", "zoom-out", "show more of the step"),
                            _button("+", "zoom-in", "show less of the step, larger"),
                            _button("Whole step", WHOLE, "whole step: show all of it"),
                        ]
                    ),
                ],
                gap="md",
                wrap="nowrap",
            ),
        ],
        justify="space-between",
        wrap="nowrap",
        align="start",
    )
    run = dcc.Graph(id=RUN, figure=figure, config=graph, style=style)
    grid_by = dmc.SegmentedControl(
        id=GROUP,
        data=[
            {"value": "pp", "label": "pipeline"},
            {"value": "dp", "label": "data"},
            {"value": "cp", "label": "context"},
            {"value": "tp", "label": "tensor"},
        ],
        value=state.group,
        size="xs",
    )
    return [
        Markup(html=tiles, id=HEADLINE, className="headline", **POLITE),
        html.Div([tools, run], className="card"),
        html.Div(
            [
                html.Div(words, id=INSPECTOR, className="inspector", **POLITE),
                Markup(html=gaps, id=GAPS, className="gaps"),
            ],
            className="card pair",
        ),
        html.Div(
            [
                html.Div(
                    [
                        html.H3("Where the step goes"),
                        Markup(html=causes, id=SPLIT_KEY, className="legend"),
                        dcc.Graph(id=SPLIT, figure=split, config=still, style=LOW),
                    ],
                    className="card",
                ),
                html.Div(
                    [
                        dmc.Group(
                            [html.H3("Which GPU is in which group"), grid_by],
                            justify="space-between",
                        ),
                        dcc.Graph(id=GRID, figure=gpus, config=still, style=GPUS),
                    ],
                    className="card",
                ),
            ],
            className="two",
        ),
    ]

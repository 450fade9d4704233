"""Learn: a step of the story, its formula, its schedule with a player, and a question."""

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.layout.plain import BLANK, STILL, attributes
from dashboard.scenes import STEPS
from dashboard.story import Formula, LearnState, Numbers, Scene, idle_share
from dashboard.theme import Look
from simulator.report import Report

__all__ = ["formula", "layout", "question", "story"]

STEP, FIGURE, STORY, FORMULA, QUESTION, EXPORTS, AT, SPEED, PROBLEM = (
    "learn-step",
    "learn-figure",
    "learn-story",
    "learn-formula",
    "learn-question",
    "learn-exports",
    "learn-at",  # store: the time at which the player stands; set by assets/player.js
    "learn-speed",
    "learn-problem",
)
SLIDERS = {"pp": "learn-pp", "m": "learn-m"}
TIMES = {"f": "learn-f", "i": "learn-i", "w": "learn-w"}
SHORT = {
    "naive": "Naive",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved",
    "zb-h1": "ZB-H1",
    "zb-h2": "ZB-H2",
    "zb-v": "ZB-V",
    "dualpipe": "DualPipe",
}
LABELS = {
    "pp": "ranks p",
    "m": "microbatches m",
    "f": "F forward",
    "i": "I backward, input",
    "w": "W backward, weights",
}


def layout(state: LearnState, look: Look) -> Any:  # noqa: ANN401, ARG001 - a component
    """The page; its figure comes with the first update."""
    names = [scene.name for scene in STEPS]
    step = state.step if state.step in names else names[0]
    steps = dmc.SegmentedControl(
        id=STEP,
        value=step,
        data=[{"value": n, "label": f"{at}  {SHORT[n]}"} for at, n in enumerate(names, 1)],
        fullWidth=True,
        size="md",
        className="learn-steps",
    )
    return html.Div(
        [
            dcc.Store(id=AT, data=state.at),
            html.Nav(steps, **attributes({"aria-label": "steps of the story"})),
            html.Div(
                [
                    html.Article(
                        id=STORY, className="learn-story", **attributes({"aria-live": "polite"})
                    ),
                    html.Section(id=FORMULA, className="card learn-formula"),
                ],
                className="learn-top",
            ),
            html.Section([_numbers(state), html.Div(id=PROBLEM), _stage()], className="card"),
            html.Div(
                [
                    html.Section(id=QUESTION, className="card learn-question"),
                    html.Section(
                        [
                            html.H2("For slides"),
                            html.P(
                                "This schedule with these numbers, as a file.", className="muted"
                            ),
                            html.Div(id=EXPORTS, className="exports"),
                        ],
                        className="card",
                    ),
                ],
                className="learn-bottom",
            ),
        ],
        className="learn",
    )


def story(scene: Scene) -> list[Any]:
    """Title and paragraphs."""
    return [html.H1(scene.title), *map(html.P, scene.story)]


def formula(scene: Scene, numbers: Numbers, report: Report) -> list[Any]:
    """The closed form with its numbers filled in, beside what the simulation says."""
    form = scene.formula
    what = "idle share of the step" if form.of == "step" else "idle share of a rank's longest span"
    simulated = idle_share(report, form.of)
    parts: list[Any] = [html.Span("="), _fraction(form.over, form.under)]
    if form.holds(numbers):
        value = form.value(numbers)
        parts += [
            html.Span("="),
            _fraction(form.over_numbers(numbers), form.under_numbers(numbers)),
            html.Span("="),
            html.Strong(_percent(value), className="figure"),
        ]
    held = max(report.peak_in_flight.tolist()) / scene.chunks
    return [
        html.H2(what),
        html.Div(parts, className="equation"),
        html.P(_verdict(form, numbers, simulated), className="learn-check"),
        html.Dl(
            [
                html.Dt("step"),
                html.Dd(f"{report.step_time:g}"),
                html.Dt("memory"),
                html.Dd(f"{scene.memory}: here {held:g}"),
            ]
        ),
        html.P(scene.source, className="muted source"),
    ]


def question(scene: Scene) -> list[Any]:
    """A question, and its answer on request."""
    return [
        html.H2("Try"),
        html.P(scene.question),
        html.Details([html.Summary("Answer"), html.P(scene.answer)], key=scene.name),
    ]


def _verdict(form: Formula, numbers: Numbers, simulated: float) -> str:
    if not form.holds(numbers):
        return (
            f"The formula asks for {form.where}. The simulation below says {_percent(simulated)}."
        )
    where = f" It holds for {form.where}." if form.where else ""
    agrees = abs(form.value(numbers) - simulated) < 1e-9
    return (
        f"✓ The simulation below says the same.{where}"
        if agrees
        else f"The simulation below says {_percent(simulated)}.{where}"
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _fraction(over: str, under: str) -> Any:  # noqa: ANN401 - a component
    return html.Span(
        [html.Span(over), html.Span(under)],
        className="fraction",
        role="math",
        **attributes({"aria-label": f"({over}) / ({under})"}),
    )


def _numbers(state: LearnState) -> Any:  # noqa: ANN401 - a component
    """The letters of the formulas, to change."""
    sizes = [
        dmc.NumberInput(
            id=SLIDERS[name],
            label=LABELS[name],
            value=getattr(state, name),
            min=least,
            max=most,
            clampBehavior="none",
            allowDecimal=False,
            debounce=200,
            size="sm",
            w=150,
        )
        for name, least, most in (("pp", 2, 64), ("m", 1, 512))
    ]
    times = [
        dmc.NumberInput(
            id=TIMES[name],
            label=LABELS[name],
            value=getattr(state, name),
            min=0.1,
            max=1000,
            step=0.1,
            clampBehavior="none",
            debounce=200,
            size="sm",
            w=150,
        )
        for name in ("f", "i", "w")
    ]
    return html.Div([*sizes, *times], className="learn-numbers")


def _stage() -> Any:  # noqa: ANN401 - a component
    """The schedule, what hides the future of it, and the buttons."""
    return html.Div(
        [
            html.Div(
                [
                    dcc.Graph(id=FIGURE, figure=BLANK, config=STILL),
                    html.Div(html.Div(className="veil"), className="curtain"),
                ],
                id="learn-stage",
                className="stage",
            ),
            html.Div(
                [
                    _button("restart", "|◀", "to the beginning"),
                    _button("back", "◀", "one op back"),
                    _button("play", "▶ Play", "play or pause"),
                    _button("forward", "▶", "one op on"),
                    html.Div(id="learn-scrub", className="scrub"),
                    html.Output(id="learn-time", className="learn-time"),
                    dmc.SegmentedControl(
                        id=SPEED,
                        value="1",
                        data=[
                            {"value": v, "label": f"{v} x"} for v in ("0.25", "0.5", "1", "2", "4")
                        ],
                        size="xs",
                    ),
                ],
                className="player",
                role="group",
                **attributes({"aria-label": "player"}),
            ),
        ]
    )


def _button(what: str, sign: str, words: str) -> Any:  # noqa: ANN401 - a component
    return html.Button(
        sign,
        className=f"player-button {what}",
        title=words,
        **attributes({"data-player": what, "aria-label": words, "type": "button"}),
    )

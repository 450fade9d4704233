"""Explore: one request a move, one answer with all figures."""

from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, html, no_update, set_props

from dashboard import ids
from dashboard.answer import answer, key_of
from dashboard.choice import pasted_model
from dashboard.exploration import ExploreState
from dashboard.layout import explore as page
from dashboard.layout.fields import field_id
from dashboard.problems import Problem, problem_of
from dashboard.request import state_of
from dashboard.visit import Visit, address, visit_of
from simulator.errors import validated

__all__ = ["register"]


def register(app: Dash) -> None:
    """Add the page's callbacks."""
    field, slider = {"explore": "field", "name": ALL}, {"explore": "slider", "name": ALL}
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("explore", "gather"),
        Output(page.REQUEST, "data"),
        Input(field, "value"),
        Input(field, "checked"),
        Input(slider, "value"),
        Input(page.MODEL, "value"),
        Input(page.CONFIG, "data"),
        Input(page.CLUSTER, "value"),
        Input(page.SEQ_LEN, "value"),
        Input(page.TOKENS, "value"),
        Input(page.PRICE, "value"),
        Input(page.CRITICAL, "checked"),
        Input(page.GROUP, "value"),
        Input(page.RUN, "relayoutData"),
        Input(ids.visit_of("explore"), "data"),
        Input(page.SPOT, "data"),
        State(page.VIEW, "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("explore", "settled"), Input(page.PROBLEMS, "data")
    )
    app.callback(
        Output(page.RUN, "figure"),
        Output(page.HEADLINE, "html"),
        Output(page.LEGEND, "html"),
        Output(page.SPLIT, "figure"),
        Output(page.SPLIT_KEY, "html"),
        Output(page.GRID, "figure"),
        Output(page.GAPS, "html"),
        Output(page.INSPECTOR, "children"),
        Output(page.RUN, "style"),
        Output(page.RESULTS, "className"),
        Output(page.PROBLEMS, "data"),
        Output(ids.NOTICE, "children", allow_duplicate=True),
        Output(ids.QUERY, "data", allow_duplicate=True),
        Input(page.REQUEST, "data"),
        State(page.PROBLEMS, "data"),
        prevent_initial_call=True,
    )(update)
    app.callback(Output(page.MORE, "children"), Input(page.VIEW, "data"))(more)
    app.callback(
        Output(page.CONFIG, "data"),
        Output(page.PASTE, "error"),
        Output(page.MODEL, "value"),
        Input(page.PASTE, "value"),
        prevent_initial_call=True,
    )(paste)


def update(request: Any, marked: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """All figures of a request, or what is wrong with it, at the field."""
    if request is None:
        return (no_update,) * 13
    before = marked.get("fields", []) if isinstance(marked, dict) else []
    try:
        state = state_of(request)
    except ValueError as error:
        return _refused(Problem(str(error), {}), before, _number(request), no_update)
    visit, scope = visit_of(request.get("visit")), request.get("scope")
    if scope == "none":  # the layout came with the answer
        return (*(no_update,) * 12, _query(state, visit))
    told = _number(request) | {"key": key_of(state)}
    try:
        parts = answer(state, visit.look, scope=str(scope), there=request.get("there"))
    except ValueError as error:
        del told["key"]
        return _refused(problem_of(error, state), before, told, _query(state, visit))
    _mark(Problem("", {}), before)
    *shown, there = parts
    mended = bool(before) or bool(request.get("stale"))
    name, notice = ("results", None) if mended else (no_update, no_update)
    told |= {"fields": [], "there": there}
    return (*shown, name, told, notice, _query(state, visit))


def _number(request: Any) -> dict[str, Any]:  # noqa: ANN401 - what a browser sends
    """Which request an answer answers, for assets/explore.js."""
    number = request.get("number") if isinstance(request, dict) else None
    return {"number": number if isinstance(number, int) else None}


def more(view: Any) -> Any:  # noqa: ANN401 - what a browser sends
    """The rest of the fields, once the page stands."""
    state = view.get("state") if isinstance(view, dict) else None
    return no_update if state is None else page.more_fields(validated(ExploreState, state, ""))


def paste(text: Any) -> tuple[Any, ...]:  # noqa: ANN401 - what a browser sends
    """The model of a pasted config.json takes the place of the preset."""
    if not text:
        return no_update, None, no_update
    try:
        return pasted_model(str(text)).model_dump(mode="json"), None, None
    except ValueError as error:
        return no_update, str(error), no_update


def _refused(
    problem: Problem, before: list[str], told: dict[str, Any], query: object
) -> tuple[Any, ...]:
    """Mark the fields; what was shown stays, dimmed, under the sentence."""
    _mark(problem, before)
    alert = dmc.Alert(problem.message, title="This job cannot run", color="orange", variant="light")
    kept = (no_update,) * 9
    told |= {"fields": list(problem.works), "stale": True}
    return (*kept, "results stale", told, alert, query)


def _mark(problem: Problem, before: list[str]) -> None:
    """Set the error of each field that is at fault, and clear those that no longer are."""
    for name in before:
        if isinstance(name, str) and name not in problem.works:
            set_props(_control(name), {"error": None})
    for place, (name, values) in enumerate(problem.works.items()):
        said = problem.message if place == 0 else "or change this one"
        set_props(_control(name), {"error": _way_out(name, said, values)})


def _control(name: str) -> Any:  # noqa: ANN401 - a component's id
    own = {"model": page.MODEL, "cluster": page.CLUSTER, "seq_len": page.SEQ_LEN}
    return own.get(name) or field_id(name)


def _way_out(name: str, said: str, values: tuple[Any, ...]) -> list[Any]:
    """The sentence, and a button for each value that works."""
    buttons: list[Any] = [
        html.Button(
            _shown(value),
            className="fix",
            **_data(name, value),
        )
        for value in values
    ]
    works = [html.Span("works: "), *buttons] if buttons else []
    return [html.Span(said), html.Span(works, className="works")]


def _shown(value: Any) -> str:  # noqa: ANN401 - of any field
    return "empty" if value is None else str(value).lower()


def _data(name: str, value: Any) -> Any:  # noqa: ANN401 - attributes
    return {"data-fix": name, "data-value": "" if value is None else str(value)}


def _query(state: ExploreState, visit: Visit) -> Any:  # noqa: ANN401 - or nothing to say
    """The address; a state that is too large for one leaves the address as it is."""
    try:
        return address(state, visit)
    except ValueError:
        return no_update

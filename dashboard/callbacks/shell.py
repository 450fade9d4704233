"""Which page is shown, what the address says, which theme is on."""

from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from dashboard import ids
from dashboard.layout.shell import missing
from dashboard.notice import refused
from dashboard.pages import Page, pages
from dashboard.state import State as PageState
from dashboard.state import decode
from dashboard.visit import Visit, visit_of

__all__ = ["register"]


def register(app: Dash) -> None:
    """Add the shell's callbacks."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("address", "start"),
        Output(ids.ROUTE, "data"),
        Input(ids.SCHEME, "data"),
        State(ids.ROUTE, "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("address", "dress"),
        Output({ids.VISITS: ALL}, "data"),
        Input(ids.SCHEME, "data"),
        Input(ids.CONTENT, "children"),
        State({ids.VISITS: ALL}, "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("address", "write"), Input(ids.QUERY, "data")
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("address", "copy"),
        Output(ids.ADDRESS, "children"),
        Input(ids.ADDRESS, "n_clicks"),
        prevent_initial_call=True,
    )
    app.callback(
        Output(ids.CONTENT, "children"),
        Output(ids.NOTICE, "children"),
        Input(ids.ROUTE, "data"),
        prevent_initial_call=True,
    )(show)


def show(route: Any) -> tuple[Any, Any]:  # noqa: ANN401 - what a browser sends
    """The page of a route, and what is wrong with its address."""
    if not isinstance(route, dict):
        return no_update, refused("the address cannot be read; open the page anew")
    path, query = str(route.get("path", "/")), str(route.get("query", ""))
    page, visit = pages().get(path), visit_of(route)
    if page is None:
        return missing(path), None
    try:
        return _content(page, decode(page.state, query), visit), None
    except ValueError as error:
        return _content(page, page.state(), visit), refused(error)


def _content(page: Page[Any], state: PageState, visit: Visit) -> list[Any]:
    """A page, its name for whoever hears it, and its store of the visit."""
    said = {"visit": visit.number, "theme": visit.look.name, "chosen": visit.is_chosen}
    store = dcc.Store(id=ids.visit_of(page.path.strip("/") or "explore"), data=said)
    return [store, html.H1(page.name, className="unseen"), page.layout(state, visit.look)]

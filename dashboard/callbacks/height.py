"""Figures that say how high they are, as they depend on what they show."""

from dash import ClientsideFunction, Dash, Input, Output

__all__ = ["keep_height"]


def keep_height(app: Dash, *graphs: str) -> None:
    """Let a graph stand as high as its figure, whatever happens to the window.

    When the window changes, plotly takes its height from the page and forgets the figure's own.
    """
    for graph in graphs:
        app.clientside_callback(  # type: ignore[no-untyped-call]
            ClientsideFunction("height", "own"), Output(graph, "style"), Input(graph, "figure")
        )

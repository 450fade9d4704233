"""Explore: one job, and everything that it leads to."""

from dashboard.callbacks.explore import register
from dashboard.exploration import ExploreState
from dashboard.layout.explore import layout
from dashboard.pages import Page

PAGE = Page(
    name="Explore",
    path="/",
    order=1,
    about="One job: its step, its memory, its cost",
    state=ExploreState,
    layout=layout,
    register=register,
)

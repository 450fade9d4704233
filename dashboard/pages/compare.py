"""Compare: up to six runs side by side."""

from dashboard.callbacks.compare import register
from dashboard.comparison import CompareState
from dashboard.layout.compare import layout
from dashboard.pages import Page

PAGE = Page(
    name="Compare",
    path="/compare",
    order=2,
    about="Up to six schedules, plans, saved or measured runs on one time axis",
    state=CompareState,
    layout=layout,
    register=register,
)

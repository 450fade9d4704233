"""Search: every plan of a model on a cluster, judged in the background."""

from dashboard.callbacks.search import register
from dashboard.layout.search import layout
from dashboard.pages import Page
from dashboard.planning import SearchState

PAGE = Page(
    name="Search",
    path="/search",
    order=3,
    about="Every plan of a model on a cluster, judged while you watch",
    state=SearchState,
    layout=layout,
    register=register,
)

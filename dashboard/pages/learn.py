"""Learn: from naive to zero bubble, step by step."""

from dashboard.callbacks.learn import register
from dashboard.layout.learn import layout
from dashboard.pages import Page
from dashboard.story import LearnState

PAGE = Page(
    name="Learn",
    path="/learn",
    order=6,
    about="From naive to zero bubble, step by step",
    state=LearnState,
    layout=layout,
    register=register,
)

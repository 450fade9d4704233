"""Design: a schedule of one's own."""

from dashboard.callbacks.design import register
from dashboard.design import DesignState
from dashboard.layout.design import layout
from dashboard.pages import Page

PAGE = Page(
    name="Design",
    path="/design",
    order=4,
    about="Write a schedule's rows and see them run",
    state=DesignState,
    layout=layout,
    register=register,
)

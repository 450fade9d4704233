"""Measure: what was measured over what is simulated."""

from dashboard.callbacks.measure import register
from dashboard.layout.measure import layout
from dashboard.measurement import MeasureState
from dashboard.pages import Page

PAGE = Page(
    name="Measure",
    path="/measure",
    order=5,
    about="Traces over their simulation, op by op",
    state=MeasureState,
    layout=layout,
    register=register,
)

"""The web app and its figures.

How to add a page, as `compare`:

1. `dashboard/pages/compare.py`: `PAGE = Page(name="Compare", path="/compare", order=2, about=...,
   state=CompareState, layout=layout, register=register)`. That is all that registers it.
2. `dashboard/layout/compare.py`: `CompareState(State)`, frozen, with a default for every field,
   and `layout(state, look)`, a pure function from state to components (dash-mantine-components).
   The controls must show the state that it is given: it also draws the page after back, forward
   and a pasted address. Ids of the page's components are constants "compare-..." at its top.
3. `dashboard/callbacks/compare.py`: `register(app)`, callbacks of three lines without arithmetic.
   A callback fires once when the page is put in. A callback that draws a figure or writes the
   address takes `Input(ids.visit_of("compare"), "data")`, a store that the shell puts beside the
   page; `visit_of(data).look` of `dashboard.visit` gives its colours. All inputs of a callback must
   be on the page. Write the page's state with `Output(ids.QUERY, "data", allow_duplicate=True)` and
   `address(state, visit)`: the shell puts it into the address. Another page is opened by a plain
   link, `href="/" + encode(state)`.
   A browser drops an answer when it has asked the same callback again, and tells changes of one
   moment together: compute from the values that are sent, not from which of them has changed.
4. `dashboard/figures/<figure>.py`: `figure(..., look)`, pure: a `go.Figure`, or, where it must be
   quick, a table of `dashboard.figures.spec`. `dashboard.theme.frame` and `axis` begin its layout.
   Show it in `dcc.Graph(config=GRAPH)` of `dashboard.layout.graph`.
5. What a browser sends is `Any`: parse it into a value (`validated(...)`) before use. A ValueError
   of a callback becomes a notice on the page (`app.py`); show one at the field where you can.
   `dashboard.limits` bounds the work; names from outside are never HTML (`html.escape` in hover
   texts, plain children elsewhere) and never paths.

`dashboard.choice.Choice` is a job as a page's state holds it, `dashboard.runs.run_of` its run.
"""

"""The web app: `bubblescope dashboard`, or `gunicorn dashboard.app:server`.

No page keeps anything on the server: a callback computes from what the browser sends, so that any
number of users and workers may share it. Every script and style is served from here.
"""

import logging
import re

from dash import Dash, ctx, set_props

from dashboard import ids
from dashboard.callbacks import shell
from dashboard.layout.shell import shell as frame
from dashboard.notice import failed, refused
from dashboard.pages import pages
from dashboard.scripts import PLOTLY, Quick, serve_plotly
from dashboard.serving import harden
from dashboard.theme import LIGHT
from simulator.kernel import compile_all

__all__ = ["app", "create", "server"]

LOG = logging.getLogger("bubblescope.dashboard")
INDEX = """<!DOCTYPE html>
<html lang="en">
    <head>
        {%metas%}
        <title>{%title%}</title>
        {%favicon%}
        {%css%}
    </head>
    <body>
        {%app_entry%}
        <footer>
            {%config%}
            {%scripts%}
            {%renderer%}
        </footer>
    </body>
</html>"""


def create() -> Dash:
    """The app with all of its pages, ready to answer at once."""
    compile_all()
    app = Quick(
        "dashboard",
        title="Bubblescope",
        update_title="",
        index_string=INDEX,
        serve_locally=True,
        suppress_callback_exceptions=True,
        on_error=_on_error,
        enable_mcp=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        description="See, predict and verify how a large language model is cut over GPUs.",
    )
    app.layout = frame(pages().values())
    shell.register(app)
    for page in pages().values():
        page.register(app)
    serve_plotly(app)
    harden(app)
    _warm_up(app)
    return app


def _warm_up(app: Dash) -> None:
    """Do once what would make the first user wait: load the kernels, compress the scripts."""
    from dashboard.answer import answer
    from dashboard.exploration import ExploreState

    answer(ExploreState(), LIGHT)
    browser = app.server.test_client()
    for path in (PLOTLY, *re.findall(r'src="(/_dash-[^"]+)"', browser.get("/").text)):
        browser.get(path, headers={"Accept-Encoding": "gzip"})


def _on_error(error: Exception) -> None:
    """What a callback could not do is told on the page; the rest of the page stays."""
    if isinstance(error, ValueError):
        set_props(ids.NOTICE, {"children": refused(error)})
        return
    LOG.error("callback %s", ctx.triggered_id, exc_info=error)
    set_props(ids.NOTICE, {"children": failed("This could not be computed.")})


app = create()
server = app.server

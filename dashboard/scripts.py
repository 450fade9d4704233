"""Which scripts a page waits for: plotly with the charts of these pages alone, tables when needed.

`dashboard/plotly/` holds the npm package `plotly.js-cartesian-dist-min`, a third of what plotly for
Python brings, in the same version; with another version installed, plotly's own is served.
"""

import gzip
import re
from functools import cache
from pathlib import Path
from typing import Any

from dash import Dash
from flask import Response, request
from plotly.offline import get_plotlyjs_version

__all__ = ["PLOTLY", "Quick", "serve_plotly", "smaller"]

SUITES = "/_dash-component-suites/"
PLOTLY = f"{SUITES}plotly/package_data/plotly.min.js"
CHUNK = f"{SUITES}dash/dcc/async-graph.js"  # asked for only when the first figure is there
FILE = Path(__file__).with_name("plotly") / "plotly-cartesian.min.js.gz"
WITHOUT_TABLES = ("/", "/design", "/learn")  # pages that need no grid
_POLYFILL = re.compile(r'<script src="[^"]*/dash/deps/polyfill@[^"]*"></script>')
_TABLES = re.compile(r'<script src="([^"]*/dash_ag_grid/[^"]*)"></script>')


class Quick(Dash):
    """Dash, whose first page does not wait for what it does not use. A class as Dash asks."""

    def interpolate_index(self, **parts: Any) -> str:  # type: ignore[override]  # noqa: ANN401
        """The page's HTML; assets/late.js runs the scripts that are marked "late".

        Dash's polyfills are left out: every browser that runs these pages has what they add, and
        they put a slow `trim` and `parseInt` in the place of its own, by which plotly reads each
        colour. assets/regenerator.js is the part of them that is needed.
        """
        parts["scripts"] = _POLYFILL.sub("", parts["scripts"])
        if request.path in WITHOUT_TABLES:
            late = r'<script type="text/late" data-src="\1"></script>'
            parts["scripts"] = _TABLES.sub(late, parts["scripts"])
        links = "".join(f'<link rel="preload" as="script" href="{one}">' for one in (PLOTLY, CHUNK))
        parts["css"] = links + parts["css"]
        return str(super().interpolate_index(**parts))  # type: ignore[no-untyped-call]


def serve_plotly(app: Dash) -> None:
    """Answer with the smaller plotly where the whole is asked for."""
    if _version() != get_plotlyjs_version():
        return

    def answer() -> Response | None:
        if request.path != PLOTLY:
            return None
        made = Response(smaller(), mimetype="application/javascript")
        made.add_etag()
        made.cache_control.no_cache = True  # ask whether it is still this one
        made.make_conditional(request)
        return made

    app.server.before_request(answer)


@cache
def smaller() -> bytes:
    """The smaller plotly.js."""
    return gzip.decompress(FILE.read_bytes())


def _version() -> str:
    """Of the smaller plotly.js."""
    found = re.search(rb"minified\) v([\d.]+)", smaller()[:200])
    return found[1].decode() if found else ""

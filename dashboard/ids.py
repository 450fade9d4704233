"""Names of the components that more than one file speaks of.

A page's own components are named `<page>-<what>` in a block of its own below.
"""

__all__ = [
    "ADDRESS",
    "CONTENT",
    "NOTICE",
    "PROVIDER",
    "QUERY",
    "ROUTE",
    "SCHEME",
    "TITLE",
    "TOGGLE",
    "VISITS",
    "visit_of",
]

ROUTE = "route"  # store {"path", "query", "visit", "theme", "chosen"}: the page to show; set by
# loading, links, back, forward
QUERY = "query"  # store {"visit", "query"}: describes the page as it is; written into the address
PROVIDER = "provider"  # of the theme to all components
VISITS = "visit"  # stores, one on each page: {"visit", "theme", "chosen"}; see `visit_of`
SCHEME = "scheme"  # store: "light" or "dark" as the browser shows it; set by assets/address.js
TOGGLE = "theme-toggle"
CONTENT = "content"  # the page's layout
NOTICE = "notice"  # where errors that belong to no field are told
TITLE = "page-title"
ADDRESS = "address"  # the link that copies the address


def visit_of(page: str) -> dict[str, str]:
    """The store of a page that says which showing of it this is, in which theme.

    The shell adds it to the page; `dashboard.visit` reads it.

    Every page has one of its own, because a callback's inputs must all be there or none.
    """
    return {VISITS: page}

"""Names of the components that more than one file speaks of.

A page's own components are named `<page>-<what>` in a block of its own below.
"""

__all__ = [
    "ADDRESS",
    "CONTENT",
    "NOTICE",
    "QUERY",
    "ROUTE",
    "SCHEME",
    "THEMES",
    "TITLE",
    "TOGGLE",
    "theme_of",
]

ROUTE = "route"  # store {"path", "query"}: the page to show; set by loading, links, back, forward
QUERY = "query"  # store: the query that describes the page as it is; written into the address
THEMES = "theme"  # stores, one on each page: "light" or "dark"; see `theme_of`
SCHEME = "scheme"  # store: "light" or "dark" as the browser shows it; set by assets/address.js
TOGGLE = "theme-toggle"
CONTENT = "content"  # the page's layout
NOTICE = "notice"  # where errors that belong to no field are told
TITLE = "page-title"
ADDRESS = "address"  # the link that copies the address


def theme_of(page: str) -> dict[str, str]:
    """The store of a page that says "light" or "dark"; the shell adds it to the page.

    Every page has one of its own, because a callback's inputs must all be there or none.
    """
    return {THEMES: page}

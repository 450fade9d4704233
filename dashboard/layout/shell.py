"""What stands around every page: name, links, theme, notices."""

from collections.abc import Iterable
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import ids
from dashboard.pages import Page
from dashboard.theme import MANTINE

__all__ = ["missing", "shell"]

PAGES: Any = {"aria-label": "pages"}
POLITE: Any = {"aria-live": "polite"}


def shell(pages: Iterable[Page[Any]]) -> Any:  # noqa: ANN401 - a component
    """The frame; a page is put into `ids.CONTENT`."""
    links = [
        dmc.Anchor(
            page.name,
            href=page.path,
            underline="never",
            className="page-link",
            attributes={"root": {"data-page": page.path, "title": page.about}},
        )
        for page in pages
    ]
    copy = dmc.Button(
        "Copy link", id=ids.ADDRESS, variant="subtle", size="compact-sm", className="copy-link"
    )
    toggle = dmc.ActionIcon(  # assets/address.js hears its clicks
        [html.Span("☀", className="when-dark"), html.Span("☾", className="when-light")],
        id=ids.TOGGLE,
        variant="subtle",
        size="md",
        attributes={"root": {"aria-label": "light or dark", "title": "light or dark"}},
    )
    bar = dmc.Group(
        [
            dmc.Anchor("Bubblescope", href="/", underline="never", className="brand"),
            html.Nav(links, className="page-links", **PAGES),
            dmc.Group([copy, toggle], gap="xs", ml="auto"),
        ],
        h="100%",
        px="lg",
        gap="xl",
        wrap="nowrap",
    )
    return dmc.MantineProvider(
        [
            dcc.Store(id=ids.ROUTE),
            dcc.Store(id=ids.QUERY),
            dcc.Store(id=ids.SCHEME),
            html.A("Skip to the page", href=f"#{ids.CONTENT}", className="skip-link"),
            dmc.AppShell(
                [
                    dmc.AppShellHeader(bar),
                    dmc.AppShellMain(
                        [
                            html.Div(id=ids.NOTICE, className="notices", **POLITE),
                            html.Div(id=ids.CONTENT, tabIndex=-1),
                        ]
                    ),
                ],
                header={"height": 52},
                padding=0,
            ),
        ],
        id=ids.PROVIDER,
        theme=MANTINE,
        defaultColorScheme="auto",
    )


def missing(path: str) -> Any:  # noqa: ANN401 - a component
    """What a path shows that no page has."""
    return dmc.Stack(
        [
            dmc.Title("No such page", order=2),
            dmc.Text(f"There is no page {path[:80]}.", c="dimmed"),
            dmc.Anchor("Open Explore", href="/"),
        ],
        align="center",
        py=120,
    )

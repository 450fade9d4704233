"""What the user is told when something cannot be done: one clear sentence, never a trace."""

from typing import Any

import dash_mantine_components as dmc

__all__ = ["failed", "refused"]


def refused(error: ValueError | str) -> Any:  # noqa: ANN401 - a component
    """A mistake that the user can mend; the text is shown as text, never as HTML."""
    return dmc.Alert(str(error), title="This cannot be shown", color="orange", variant="light")


def failed(what: str) -> Any:  # noqa: ANN401 - a component
    """A fault of ours: the page goes on, the details are in the server's log."""
    return dmc.Alert(
        f"{what} The server's log has the details; what is on the page is from before.",
        title="Something went wrong here",
        color="red",
        variant="light",
    )

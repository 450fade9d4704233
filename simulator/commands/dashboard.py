"""`bubblescope dashboard`: serve the web app, on this machine alone unless told otherwise."""

import argparse
import logging
import socket
import sys
import webbrowser
from pathlib import Path
from typing import Any

__all__ = ["add", "run"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8050, help="port to listen on; 0 = a free one")
    parser.add_argument("--job", metavar="JOB", help="TOML file of the job that Explore opens with")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")


def run(arguments: argparse.Namespace) -> None:
    """Serve until Ctrl-C."""
    if not 0 <= arguments.port <= 65535:
        raise ValueError(f"--port is {arguments.port}; use 0 (a free one) to 65535")
    query = _query(arguments.job) if arguments.job else ""
    from dashboard.app import server

    listening = _listen(arguments.host, arguments.port, server)
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    url = f"http://{host}:{listening.socket.getsockname()[1]}/{query}"
    print(f"Bubblescope is at {url}\nCtrl-C ends it", flush=True)
    if arguments.host not in LOOPBACK:
        print("Others on the network can reach it.", flush=True)
    if not arguments.no_browser:
        webbrowser.open(url)
    try:
        listening.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        listening.server_close()


def _query(path: str) -> str:
    """The address of Explore with a job file's job."""
    from dashboard.choice import choice_of
    from dashboard.exploration import ExploreState
    from dashboard.state import encode
    from simulator.load import load_job

    choice = choice_of(load_job(Path(path)))
    return encode(ExploreState(**dict(choice)))


def _listen(host: str, port: int, server: Any) -> Any:  # noqa: ANN401 - Flask's and Werkzeug's
    """A server with a thread for each request."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        place = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ValueError(
            f"cannot listen on {host}, port {port}: {(error.strerror or str(error)).lower()}; use "
            "another --port, or 0 for a free one"
        ) from None
    with place:  # the server takes a copy
        return make_server(host, port, server, threaded=True, fd=place.fileno())

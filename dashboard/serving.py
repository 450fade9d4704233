"""How the server answers: compressed, bounded, to its own pages alone, errors in one sentence."""

import logging
import re
from typing import Any

from dash import Dash
from flask import Flask, Request, Response, request
from flask_compress import Compress
from werkzeug.exceptions import HTTPException

from dashboard.limits import MOST_REQUEST

__all__ = ["harden"]

LOG = logging.getLogger("bubblescope.dashboard")
SCRIPTS = "/_dash-component-suites/"
MOST_SCRIPTS = 64  # kept compressed
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' {hashes}; worker-src 'self' blob:; font-src 'self' data:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)


class Scripts:
    """Compressed scripts by path, so that each is compressed once. A class as its user asks."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """What was kept."""
        return self._kept.get(key)

    def set(self, key: str, value: bytes) -> None:
        """Keep a script, and nothing else."""
        if SCRIPTS in key and len(self._kept) < MOST_SCRIPTS:
            self._kept[key] = value


def harden(app: Dash) -> None:
    """Compress, bound, and guard every answer."""
    server: Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = MOST_REQUEST
    server.config["COMPRESS_ALGORITHM"] = ["gzip"]
    server.config["COMPRESS_LEVEL"] = 4
    server.config["COMPRESS_CACHE_BACKEND"] = Scripts
    server.config["COMPRESS_CACHE_KEY"] = _script
    server.config["COMPRESS_MIMETYPES"] = [
        "application/json",
        "application/javascript",
        "text/javascript",
        "text/css",
        "text/html",
    ]
    Compress(server)
    server.before_request(_refuse_other_sites)
    _add_headers(app)
    server.register_error_handler(413, _too_large)
    server.register_error_handler(Exception, _sentence)


def _script(asked: Request) -> str:
    """What a compressed answer is kept under; other answers are not kept."""
    return asked.path if asked.method == "GET" and asked.path.startswith(SCRIPTS) else ""


def _refuse_other_sites() -> tuple[dict[str, str], int] | None:
    origin = request.headers.get("Origin")
    if request.method == "GET" or origin is None:
        return None
    if re.sub(r"^https?://", "", origin) != request.host:
        return {"error": "requests from other sites are not answered"}, 403
    return None


def _add_headers(app: Dash) -> None:
    """Scripts of this server alone, among them Dash's own inline one by its hash."""
    policy: list[str] = []

    def add(response: Response) -> Response:
        if response.direct_passthrough:  # a file: read it whole, and close it
            response.direct_passthrough = False
            response.make_sequence()
        if not policy:
            hashes = " ".join(f"'{one.strip(chr(39))}'" for one in app.csp_hashes())
            policy.append(POLICY.format(hashes=hashes))
        response.headers["Content-Security-Policy"] = policy[0]
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"
        return response

    app.server.after_request(add)


def _too_large(_: Exception) -> tuple[dict[str, str], int]:
    limit = f"{MOST_REQUEST // 1_000_000} MB"
    return {"error": f"the request is too large; at most {limit} are read"}, 413


def _sentence(error: Exception) -> Any:  # noqa: ANN401 - what Flask answers with
    if isinstance(error, HTTPException):
        return {"error": error.description or error.name}, error.code or 500
    LOG.error("request %s", request.path, exc_info=error)
    return {"error": "the server could not answer this request; reload the page"}, 500

"""Where browsers send files to: `POST /upload`, answered with a token or one sentence."""

from flask import Flask, Response, jsonify, request

from dashboard.uploads import keep, uploaded

__all__ = ["add_upload"]


def add_upload(server: Flask) -> None:
    """Serve uploads, for all pages that take them."""
    if "upload" in server.view_functions:
        return

    def upload() -> Response:
        files = [(file.filename or "", file.stream) for file in request.files.getlist("files")]
        try:
            token = keep(files)
        except ValueError as error:
            return jsonify(error=str(error))  # an answer, not a failure of the request
        return jsonify(token=token, name=uploaded(token).name)

    server.add_url_rule("/upload", "upload", upload, methods=["POST"])

"""Writing a file so that a reader sees the old content or the new, never a part."""

import os
from pathlib import Path
from uuid import uuid4

__all__ = ["replace_bytes"]


def replace_bytes(path: Path, data: bytes) -> None:
    """Put `data` in the file at once: a temporary file in the same folder, then a rename.

    Raises:
        ValueError: the path cannot be written; what stood there still stands.

    """
    temporary = path.with_name(f".{uuid4().hex}.tmp")  # the umask gives its mode, as for any file
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)

"""Reads TOML and JSON files; an error names the file, the line and what is wrong there."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["parse_toml", "read_bytes", "read_json"]

Table = dict[str, Any]


def read_json(path: Path) -> Table:
    """The object of a JSON file."""
    data = read_bytes(path)
    try:
        config = json.loads(data)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}, line {error.lineno}: {error.msg}; is it a complete config.json?"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; is it a config.json?") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}; is it a model's config.json?") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object; is it a model's config.json?")
    return config


def read_bytes(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ValueError(f"cannot read {path}: {why}; give the path of a readable file") from None


def parse_toml(data: bytes, name: str) -> Table:
    """The table of TOML text; errors name the file and the line."""
    try:
        text = data.decode()
        return tomllib.loads(text)
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8 text; is it a TOML file?") from None
    except (ValueError, RecursionError) as error:
        what, _, where = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", where)
        number = line[1] if line else max(1, len(text.splitlines()))
        cut = " at the end of the file; is it complete?" if where.startswith("end") else ""
        raise ValueError(f"{name}, line {number}: {what}{cut or '; correct that line'}") from None

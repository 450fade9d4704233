"""`bubblescope dashboard`: it says where it is, answers, and ends cleanly with Ctrl-C."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from simulator.commands import dashboard as command

SERVE = (
    "import argparse, sys; from simulator.commands import dashboard as d;"
    "p = argparse.ArgumentParser(); d.add(p); d.run(p.parse_args(sys.argv[1:]))"
)


def parsed(*words):
    parser = argparse.ArgumentParser()
    command.add(parser)
    return parser.parse_args(words)


def test_it_prints_its_address_answers_and_ends_with_ctrl_c():
    words = ["--port", "0", "--no-browser", "--job", "examples/small_8_gpus.toml"]
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": "."},
    ) as server:
        try:
            url = server.stdout.readline().split()[-1]
            assert url.startswith("http://127.0.0.1:")
            assert "plan.pp=4" in url
            with urllib.request.urlopen(url, timeout=120) as answer:
                assert b"Bubblescope" in answer.read()
            server.send_signal(signal.SIGINT)
            _, said = server.communicate(timeout=120)
        finally:
            server.kill()  # one that has not ended would be waited for without end
    assert server.returncode == 0
    assert "Traceback" not in said


def test_it_listens_on_this_machine_alone_unless_told():
    assert parsed().host == "127.0.0.1"


def test_a_port_that_is_taken_or_none_is_a_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1, port {port}: .*--port"):
            command.run(parsed("--port", str(port), "--no-browser"))
    with pytest.raises(ValueError, match="--port is 70000"):
        command.run(parsed("--port", "70000"))

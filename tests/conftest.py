"""Settings of all tests, and what the tests of the dashboard's pages share."""

import signal

import pytest
from hypothesis import settings

# What is started in the background ignores Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines are noisy: no test depends on wall-clock time, and a failure repeats.
settings.register_profile("tests", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("tests")


@pytest.fixture(scope="module")
def url():
    """Where a dashboard is served."""
    from tests.dashboard_page import serving

    with serving() as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    """A Chromium."""
    from tests.dashboard_page import browsing

    with browsing() as browser:
        yield browser

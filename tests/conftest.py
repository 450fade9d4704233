"""Settings of all tests."""

from hypothesis import settings

# Machines are noisy: no test depends on wall-clock time, and a failure repeats.
settings.register_profile("tests", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("tests")

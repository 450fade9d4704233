"""The address holds the whole state: any state comes back, and nothing else is believed."""

import base64
import contextlib
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.exploration import ExploreState
from dashboard.limits import MOST_QUERY, MOST_STATE
from dashboard.state import decode, encode

words = st.text(max_size=40)
values = st.one_of(
    st.booleans(), st.integers(-(10**9), 10**9), words, st.floats(-1e9, 1e9), st.none()
)
states = st.builds(
    ExploreState,
    model=words,
    cluster=words,
    plan=st.dictionaries(words, values, max_size=6),
    tokens=st.floats(1.0, 1e15),
    critical=st.booleans(),
    theme=st.sampled_from(["light", "dark", None]),
    window=st.none() | st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
    bubble=st.none() | st.tuples(st.integers(0, 9999), st.floats(0, 1e6)),
)


@given(states)
def test_any_state_comes_back_from_its_address(state):
    assert decode(ExploreState, encode(state)) == state


def test_the_default_needs_no_query_and_a_change_is_readable():
    assert encode(ExploreState()) == ""
    text = encode(ExploreState(model="llama3-8b", plan={"pp": 4}))
    assert text == "?v=1&model=llama3-8b&plan.pp=4"


def test_a_long_state_is_packed_and_comes_back():
    rows = "\n".join(",".join(f"{r}F{m},{r}B{m}" for m in range(64)) for r in range(8))
    state = ExploreState(plan={"schedule": "custom", "rows": rows})
    text = encode(state)
    assert "&z=" in text
    assert len(text) < MOST_QUERY
    assert decode(ExploreState, text) == state


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?v=2&plan.pp=4", "version 2, but this page reads version 1"),
        ("?plan.pp=4", "version (none)"),
        ("?v=1&tokens=NaN", "tokens"),
        ("?v=1&tokens=-5", "tokens is -5"),
        ("?v=1&nonsense=1", "nonsense"),
        ("?v=1&plan=3&plan.pp=4", "as a value and as a table"),
        ("?v=1&z=@@@", "damaged"),
        ("?v=1&z=AAAA", "damaged"),
        ("?v=1&model=" + "x" * MOST_QUERY, "at most 8,000"),
        ("?v=1&window=" + "[" * 3000, "window"),
    ],
)
def test_what_is_no_state_is_refused_in_a_sentence(query, said):
    with pytest.raises(ValueError, match=r".") as caught:
        decode(ExploreState, query)
    assert said in str(caught.value)


def test_a_query_that_unpacks_to_3_megabytes_is_refused_at_64_kilobytes():
    bomb = zlib.compress(b"[" + b" " * 3_000_000 + b"]", 9)
    assert len(bomb) < 5000
    packed = base64.urlsafe_b64encode(bomb).decode().rstrip("=")
    with pytest.raises(ValueError, match=f"more than {MOST_STATE:,}"):
        decode(ExploreState, f"?v=1&z={packed}")


@given(st.text(max_size=300))
def test_any_text_is_a_state_or_a_sentence(text):
    state: Any = None
    with contextlib.suppress(ValueError):  # and nothing else
        state = decode(ExploreState, text)
    assert state is None or isinstance(state, ExploreState)


def test_text_that_looks_like_a_number_stays_text():
    state = ExploreState(plan={"schedule": "8", "pp": 8, "dtype": "true", "flag": True})
    back = decode(ExploreState, encode(state)).plan
    assert back == {"schedule": "8", "pp": 8, "dtype": "true", "flag": True}
    assert json.dumps(back["flag"]) == "true"

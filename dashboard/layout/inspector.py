"""What was clicked explains itself: an op its parts, a bubble what it waits for."""

from typing import Any

from dash import html

from dashboard.figures.hover import op_words
from simulator.explain import Bubble, explain
from simulator.gaps import longest_of_ranks
from simulator.schedule import Kind, Op
from simulator.simulate import Run
from traces.labels import WORDS, Unit, time_unit

__all__ = ["bubble_at", "gap_buttons", "hint", "inspected"]

MOST_GAPS, MOST_CHAIN = 6, 8
MEANING = {
    "warm-up": "before the rank's first backward: the pipeline fills",
    "drain": "after the rank's last forward: the pipeline empties",
    "dependency": "in the middle: the work it needs was made late",
    "link busy": "its message shared a link with others",
    "transfer": "its message was on the way",
    "memory limit": "another forward would not have fitted into memory",
    "straggler": "a slow rank held it up",
}


def hint() -> Any:  # noqa: ANN401 - a component
    """What the inspector says before the first click."""
    return html.P(
        "Click an op or a gap in the timeline: it explains itself. Drag to pan, Ctrl and scroll "
        "to zoom.",
        className="muted",
    )


def bubble_at(run: Run, rank: int, time: float) -> Bubble | None:
    """The bubble of a rank at a time; None where an op runs.

    Raises:
        ValueError: there is no such rank or time.
    """
    if _running(run, rank, time) is not None:
        return None
    limit = run.plan.activation_limit
    slow = dict(run.job.cluster.stragglers) if run.job else {}
    return explain(run.timeline, rank, time, stragglers=slow, activation_limit=limit)


def inspected(run: Run, rank: int, time: float) -> Any:  # noqa: ANN401 - a component
    """Words on what is there."""
    at = _running(run, rank, time)
    if at is not None:
        t = run.timeline
        op = Op(int(t.stage[at]), Kind(int(t.kind[at])), int(t.microbatch[at]))
        lines = op_words(run, op, rank, float(t.start[at]), float(t.end[at]))
        return html.Div([html.H3(str(op)), *(html.P(line) for line in lines)])
    return _bubble(bubble_at(run, rank, time), time_unit(run.timeline.makespan))


def _bubble(bubble: Bubble | None, unit: Unit) -> Any:  # noqa: ANN401 - a component
    assert bubble is not None
    length = bubble.end - bubble.start
    head = f"Bubble of {time_unit(length).text(length)} on rank {bubble.rank}: {bubble.kind}"
    when = f"{unit.text(bubble.start)} to {unit.text(bubble.end)}, {MEANING[bubble.kind]}."
    if bubble.next_op is None:
        why = "It has nothing left to do until the step ends."
    else:
        made = f"{bubble.waits_for}" if bubble.waits_for else "its turn"
        where = bubble.waits_on not in (None, bubble.rank)
        whom = f" of rank {bubble.waits_on}" if where else ""
        why = f"{bubble.next_op} ({WORDS[bubble.next_op.kind]}) waits for {made}{whom}."
    parts = [html.H3(head), html.P(when), html.P(why)]
    if bubble.chain:
        steps = [
            html.Li(f"{op} on rank {rank}", value=str(at))
            for at, (rank, op, _, _) in enumerate(bubble.chain, 1)
        ]
        if len(steps) > MOST_CHAIN:
            cut = len(steps) - MOST_CHAIN + 1
            steps[3 : 3 + cut] = [html.Li(f"{cut} more", className="more-steps")]
        parts.append(html.P("What made it late, first to last:", className="muted"))
        parts.append(html.Ol(steps, className="chain"))
    return html.Div(parts)


def gap_buttons(run: Run) -> list[Any]:
    """The longest bubbles, each a button: the way to them without a mouse."""
    gaps = longest_of_ranks(run.timeline)
    columns = (gaps.length.tolist(), gaps.rank.tolist(), (gaps.begin + gaps.length / 2).tolist())
    longest = list(zip(*columns, strict=True))
    buttons = [
        html.Button(
            f"rank {rank}: {time_unit(length).text(length)}",
            className="gap",
            **_data(rank, time),
        )
        for length, rank, time in longest[:MOST_GAPS]
    ]
    heading = html.H3("Longest bubbles")
    return [heading, html.Div(buttons) if buttons else html.P("No rank idles.", className="muted")]


def _data(rank: int, time: float) -> Any:  # noqa: ANN401 - attributes
    return {"data-rank": str(rank), "data-time": repr(time)}


def _running(run: Run, rank: int, time: float) -> int | None:
    """Index of the compute span of a rank at a time."""
    t = run.timeline
    if not 0 <= rank < t.num_ranks:
        return None
    mine = t.stream_of(rank)
    found = mine[(t.start[mine] <= time) & (time < t.end[mine])]
    return int(found[0]) if len(found) else None

"""What points of a space have in common, kept from point to point so that it is worked out once."""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from simulator.costs import Costs
from simulator.costs.estimate import StageBytes, stage_bytes, stage_costs
from simulator.costs.host_loads import host_loads
from simulator.costs.layers import LayerCosts, layer_costs
from simulator.costs.memory import static_bytes
from simulator.costs.parameters import stage_experts, stage_parameters
from simulator.job import Job, Plan
from simulator.planners.balanced import Parts, balanced_layers, both_parts, is_halved
from simulator.report import Report
from simulator.schedule import Kind
from simulator.search.reasons import SAME_ROWS, reason
from simulator.search.shape import Shape, shape_of
from simulator.search.space import KNOBS
from simulator.search.wires import Lines, Wires, wires_of

__all__ = ["Known"]

Key = tuple[Any, ...]

# What the costs of a layer, and the bytes of a parameter, may depend on: every field of a plan that
# differs between points, but for how layers lie on stages and the order of the ops.
OF_LAYERS = [name for name in KNOBS if name not in ("pp", "vpp", "schedule", "layer_split")]
_layer_key = attrgetter("plan.dp", *(f"plan.{name}" for name in OF_LAYERS))


@dataclass(frozen=True)
class Known:
    """What is known so far of one space. Mutable inside; a verdict never depends on it."""

    layers: dict[Key, LayerCosts] = field(default_factory=dict)
    works: dict[Key, float] = field(default_factory=dict)
    parts: dict[Key, tuple[Parts, Parts]] = field(default_factory=dict)
    splits: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    shapes: dict[Key, tuple[Shape | str, ...]] = field(default_factory=dict)
    statics: dict[Key, tuple[float, float, float]] = field(default_factory=dict)
    lines: dict[Key, Lines] = field(default_factory=dict)
    wires: dict[Key, Wires] = field(default_factory=dict)
    reports: dict[int, Report | str] = field(default_factory=dict)  # of a range that was given up

    def costs(self, job: Job) -> Costs:
        """The costs of a job."""
        return stage_costs(self._layers(job), job)

    def held(self, job: Job) -> Costs | StageBytes:
        """What the stages of a job hold; its times too where that depends on them."""
        if job.plan.offload_activations:
            return self.costs(job)
        return stage_bytes(self._layers(job), job)

    def work(self, job: Job) -> float:
        """Time of a microbatch's forward and backward on all stages of a job together. [s]

        At least, that is on one stage: a cut hides no more of what is gathered, reduced or issued.
        """
        key = _layer_key(job)
        if key not in self.works:
            whole = job.plan.model_copy(update={"pp": 1, "vpp": 1, "layers_per_stage": None})
            seconds = self.costs(job.model_copy(update={"plan": whole})).seconds
            forward, both, first, second = seconds[Kind.F : Kind.W + 1, 0].tolist()
            self.works[key] = forward + min(both, first + second)
        return self.works[key]

    def _layers(self, job: Job) -> LayerCosts:
        key = _layer_key(job)
        if key not in self.layers:
            self.layers[key] = layer_costs(job)
        return self.layers[key]

    def static(self, job: Job) -> dict[str, float]:
        """Weights, gradients and optimizer state of the fullest rank, at least, by part. [bytes]

        Some rank holds no less than the mean, however the layers lie; copies of stages only add.
        """
        plan = job.plan
        key = (*_layer_key(job), plan.pp)
        if key not in self.statics:
            experts = sum(stage_experts(job)) / plan.pp if plan.splits_experts else None
            self.statics[key] = static_bytes(sum(stage_parameters(job)) / plan.pp, job, experts)
        return dict(
            zip(("weights", "gradients", "optimizer states"), self.statics[key], strict=True)
        )

    def rows(self, plan: Plan, schedules: tuple[str, ...]) -> tuple[Shape | str, ...]:
        """The shape of a plan's rows with each of these schedules, or why it is dropped.

        That is the rule that the schedule breaks, or that an earlier one has the same rows.
        """
        key = (plan.pp, plan.vpp, plan.num_microbatches, schedules)
        if key not in self.shapes:
            found: dict[bytes, Shape | str] = {}
            for schedule in schedules:
                one = _shape(plan.model_copy(update={"schedule": schedule}))
                digest = schedule.encode() if isinstance(one, str) else one.digest
                found[schedule.encode() if digest in found else digest] = (
                    SAME_ROWS if digest in found else one
                )
            self.shapes[key] = tuple(found.values())
        return self.shapes[key]

    def split(self, job: Job, schedule: str, shape: Shape) -> tuple[int, ...] | str:
        """The balanced layers of a job on these homes, or the rule that forbids them."""
        plan, of_parts = job.plan, _layer_key(job)
        try:
            if of_parts not in self.parts:
                self.parts[of_parts] = both_parts(job, self._layers(job))
            parts = self.parts[of_parts][is_halved(schedule, plan.pp, plan.vpp)]
            key = (parts, plan.pp, plan.vpp, shape.of_homes)
            if key not in self.splits:
                named = plan.model_copy(update={"schedule": schedule})
                self.splits[key] = balanced_layers(job.model_copy(update={"plan": named}), parts)
        except ValueError as error:
            return reason(error)
        return self.splits[key]

    def wire(self, job: Job, shape: Shape) -> Wires:
        """The wires of a job between these homes."""
        plan = job.plan
        cut = (plan.tp, plan.cp, plan.pp, plan.dp, plan.zero_stage > 0)
        key = (*cut, host_loads(job), shape.of_homes)
        if key not in self.wires:
            self.wires[key] = wires_of(job, shape, self.lines.setdefault(cut, Lines()))
        return self.wires[key]


def _shape(plan: Plan) -> Shape | str:
    try:
        return shape_of(plan)
    except ValueError as error:
        return reason(error)

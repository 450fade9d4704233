"""What a user writes: `Job = Model + Cluster + Plan`, frozen and checked. SI units throughout.

Every field's description is also the command's help and the dashboard's label, so it states the
unit in brackets. Files, presets and `config.json` are read in `simulator/load.py`.
"""

from typing import Self

from pydantic import Field, model_validator

from simulator.checks import Value
from simulator.hardware import GPU, Cluster, Link
from simulator.model import Model
from simulator.plan import Plan
from simulator.rules import check_job

__all__ = ["GPU", "Cluster", "Job", "Link", "Model", "Plan"]


class Job(Value):
    """One training job: a model, a cluster and the plan that cuts the one over the other."""

    name: str = Field("job", description="name of the job")
    model: Model = Field(description="the model: a preset's name, a config.json or a table")
    cluster: Cluster = Field(description="the cluster: a preset's name or a table")
    plan: Plan = Field(default_factory=Plan, description="the plan")

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Layers on each stage. [1]"""
        if self.plan.layers_per_stage is not None:
            return self.plan.layers_per_stage
        return (self.model.num_hidden_layers // self.plan.num_stages,) * self.plan.num_stages

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_job(self)
        return self

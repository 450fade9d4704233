"""What predictions teach: the rows of `errors.csv`, from which intervals are made."""

from collections.abc import Sequence
from dataclasses import asdict
from math import log

from simulator.accuracy.experience import Experience, kind_of
from simulator.accuracy.predictions import Prediction

__all__ = ["learnt"]


def learnt(predictions: Sequence[Prediction]) -> tuple[Experience, ...]:
    """What predictions of steps teach; layer times and contradicted rows teach nothing."""
    found = []
    for one in predictions:
        plan, model = one.job.plan, one.job.model
        if " " in one.row or one.contradicted:
            continue
        found.append(
            Experience(
                table=one.table,
                row=one.row,
                **asdict(kind_of(one.job)),
                gpu_name=one.job.cluster.gpu.name,
                dtype=plan.dtype,
                schedule=plan.schedule,
                hidden_size=model.hidden_size,
                seq_len=model.seq_len,
                micro_batch_size=plan.micro_batch_size,
                num_gpus=plan.num_gpus,
                tp=plan.tp,
                pp=plan.pp,
                cp=plan.cp,
                ep=plan.ep,
                zero_stage=plan.zero_stage,
                log_error=round(log(one.measured / one.predicted), 4),
            )
        )
    return tuple(found)

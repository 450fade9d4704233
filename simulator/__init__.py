"""Bubblescope's simulator: from a training job to its timeline and report.

>>> from simulator.job import Plan
>>> from simulator.simulate import simulate_uniform
>>> simulate_uniform(Plan(pp=4, num_microbatches=8), 1.0, 2.0).report.step_time
33.0

The public API is what each module's `__all__` names; importing this package imports none of it, so
that the command starts quickly.
"""

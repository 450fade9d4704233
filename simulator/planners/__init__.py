"""Planners of the literature: each cuts a model over stages, from the same costs.

A planner is a function from costs to a split; the simulator says what the split is worth.
"""

"""How far predictions are from published measurements: rows, jobs, scores, intervals.

`interval`, `outside` and `experience` are read by every simulation and import no other part of it
than the job; `predictions` simulates.
"""

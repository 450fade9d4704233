"""Runs that others measured: from a profiler's files to a Timeline with its waits.

recording (kineto, nsys) -> ops by mapping -> messages -> clocks -> imported -> findings
"""

"""Bubblescope's simulator: jobs, schedules, costs, the event engine, timelines and reports."""

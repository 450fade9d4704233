"""Interactive figures of timelines."""

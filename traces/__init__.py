"""Timelines in and out of the formats that people use."""

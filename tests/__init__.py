"""Tests, by what they need: see docs/tour.md."""

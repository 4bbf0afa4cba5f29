"""Data sources: code only; each yields the same Requests."""

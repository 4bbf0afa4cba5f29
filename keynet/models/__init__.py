"""The key model and its parts (training side)."""

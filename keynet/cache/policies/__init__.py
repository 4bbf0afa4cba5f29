"""Replacement policies: which entry goes when a cache is full."""

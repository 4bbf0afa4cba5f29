"""Training of key models (Lightning)."""

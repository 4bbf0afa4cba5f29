"""How good a key is, in figures that mean something."""

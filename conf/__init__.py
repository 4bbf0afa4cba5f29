"""The Hydra configuration, shipped as ``keynet.conf``."""

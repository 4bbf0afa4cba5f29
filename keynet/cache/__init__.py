"""The semantic cache: thresholds and what they guard."""

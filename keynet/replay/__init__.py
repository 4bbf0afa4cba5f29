"""What a cache would have done on a sequence of requests."""

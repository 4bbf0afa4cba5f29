"""What brings modalities together: tensors in, tensors out, on torch alone."""

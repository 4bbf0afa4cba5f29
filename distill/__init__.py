"""What passes knowledge on: teachers, their stored embeddings, objectives, weights."""

"""From a trained key model to an artefact and back."""

"""Models: checkpoints and where they come from, layers, families, attention."""

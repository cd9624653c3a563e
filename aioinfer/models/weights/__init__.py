"""Checkpoints in their formats: safetensors and GGUF."""

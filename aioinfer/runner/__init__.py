"""From a step plan to tensors and back: batches, KV cache, sampling."""

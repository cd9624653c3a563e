"""CPU-bound text work: tokenisation, detokenisation, stop strings, chat templates, and the pool for it."""

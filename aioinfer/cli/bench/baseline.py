"""The same prompts through transformers' `generate`, to compare with.

Static batches of the same size, dtype and thread count, greedy, exactly as many new tokens.  Blocks the
thread that calls it; run it when no engine is open, so that the two do not share the processor.
transformers is no dependency of aioinfer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aioinfer.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """How fast the baseline was."""

    name: str
    version: str
    batch_size: int
    num_threads: int
    dtype: str
    wall_s: float
    output_tokens: int
    output_tokens_per_s: float


class TransformersBaseline:
    """A model in transformers on the CPU.

    Args:
        model: as `EngineConfig.model`.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        num_threads: threads torch computes with; None leaves it to torch, as the engine does.

    Raises:
        BackendUnavailable: transformers is not installed.
    """

    def __init__(self, model: str, *, dtype: str, num_threads: int | None) -> None:
        try:
            import transformers
        except ImportError as error:
            raise BackendUnavailable(
                "--baseline transformers needs the packages transformers and accelerate: "
                "pip install transformers accelerate"
            ) from error
        import torch

        from aioinfer.models.store import locate

        path = locate(model)
        source: dict[str, Any] = (
            {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
            if path.is_file()
            else {"pretrained_model_name_or_path": path}
        )
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self._torch = torch
        self._version = transformers.__version__
        self._num_threads = torch.get_num_threads()
        self._dtype = dtype
        self._model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=getattr(torch, dtype))
        self._model.generation_config.eos_token_id = None  # go on to the asked length, as with ignore_eos

    def run(self, prompts: Sequence[Sequence[int]], *, batch_size: int, output_tokens: int) -> BaselineResult:
        """Generate for all prompts (token ids), `batch_size` at a time; one batch first warms up."""
        batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
        self._generate(batches[0], min(output_tokens, 2))
        start_s = time.perf_counter()
        num_tokens = sum(self._generate(batch, output_tokens) for batch in batches)
        wall_s = time.perf_counter() - start_s
        return BaselineResult(
            name="transformers",
            version=self._version,
            batch_size=batch_size,
            num_threads=self._num_threads,
            dtype=self._dtype,
            wall_s=wall_s,
            output_tokens=num_tokens,
            output_tokens_per_s=num_tokens / wall_s,
        )

    def _generate(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> int:
        """How many tokens the model added to a batch, padded on the left."""
        width = max(map(len, prompts))
        padding = [width - len(prompt) for prompt in prompts]
        ids = self._torch.tensor(
            [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
        )
        mask = self._torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding])
        output = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=output_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return int(output.shape[0] * (output.shape[1] - width))

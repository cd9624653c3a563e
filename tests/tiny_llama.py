"""A Llama checkpoint small enough to make in a test, written by transformers itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VOCAB_SIZE = 384
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What the byte-pair merges are learned from; anything else is spelt in bytes.
TEXT = (
    "The quick brown fox jumps over the lazy dog. A small model learns very little from a few lines of text,",
    "but a tokenizer learns enough to be worth testing: common words, spaces and endings become tokens.",
    "Zwölf große Boxkämpfer jagen Viktor quer über den Sylter Deich. Съешь же ещё этих мягких булок.",
)


def write_tiny_llama(directory: Path, *, seed: int = 0, max_shard_size: str = "200KB", **config: Any) -> Path:
    """Save a checkpoint with random weights, a byte-level tokenizer and a chat template.

    Args:
        directory: where; it must exist.
        seed: of the weights.
        max_shard_size: largest safetensors file, in transformers' notation.
        config: replaces values of the `LlamaConfig`.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        # Large enough for logits that differ by more than rounding.
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**(sizes | config)))
        for name, parameter in model.named_parameters():
            # Ones and zeros would hide a norm or a bias that is not applied.
            if "norm" in name or name.endswith("bias"):
                torch.nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.2)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    _write_tokenizer(directory)
    return directory


def _write_tokenizer(directory: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        TEXT,
        vocab_size=VOCAB_SIZE,
        min_frequency=1,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(directory)

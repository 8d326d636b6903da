"""ModelSpec from the ``config.json`` of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.backends.program import RopeSpec
from octavo.errors import ModelFileError
from octavo.models.rope import Llama3Scaling, default_rope, linear_rope, llama3_rope
from octavo.models.spec import ARCHITECTURES, MAX_CONTEXT, MAX_LAYERS, Header, ModelSpec, checked
from octavo.weights.tensor import LogicalTensor

# Keys that cannot change what the layers compute: of training, of how the file was made, of other
# libraries' output format, and the generation settings that old files kept here. ``sliding_window``
# and ``max_window_layers`` act only with ``use_sliding_window``, ``pretraining_tp`` only says how
# a product was once split. The ids of special tokens are the tokenizer's.
_HARMLESS_KEYS = frozenset((
    "bos_token_id", "eos_token_id", "pad_token_id",
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
    "architectures", "attention_dropout", "dtype", "embd_pdrop", "finetuning_task",
    "hidden_dropout", "id2label", "initializer_range", "is_llama_config", "label2id",
    "max_window_layers", "name_or_path", "output_attentions", "output_hidden_states",
    "pretraining_tp", "problem_type", "resid_pdrop", "return_dict", "sliding_window",
    "task_specific_params", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache", "bad_words_ids", "begin_suppress_tokens",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "prefix",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "sep_token_id",
    "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
))  # fmt: skip
# Keys that change the layers unless they have this value. Any other key is refused by name.
_NEUTRAL_KEYS: Mapping[str, object] = {
    "add_cross_attention": False,
    "attention_multiplier": 1.0,
    "attn_logit_softcapping": 0.0,
    "chunk_size_feed_forward": 0,
    "embedding_multiplier": 1.0,
    "final_logit_softcapping": 0.0,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "logits_scaling": 1.0,
    "pruned_heads": {},
    "residual_multiplier": 1.0,
    "rope_interleaved": False,
    "tf_legacy_loss": False,
    "tie_encoder_decoder": False,
    "use_mrope": False,
}
_ROPE_TYPES = ("default", "linear", "llama3")


def spec_from_hf(
    config_values: Mapping[str, Any], tensors: Mapping[str, LogicalTensor]
) -> ModelSpec:
    """Read the spec.

    Raises:
        ModelFileError: an unknown model type, key, activation or rope type, or a missing or
            senseless key.
    """
    config = Header(config_values, "config.json")
    arch = config.text("model_type")
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelFileError(f"model_type '{arch}' is not supported (supported: {known})")
    _refuse_variants(config)
    _refuse_layer_types(config)
    attention_bias = config.flag("attention_bias", default=False)
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", max(hidden // heads, 1))
    spec = ModelSpec(
        architecture=arch,
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers", limit=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=config.integer("vocab_size"),
        context_length=config.integer("max_position_embeddings", limit=MAX_CONTEXT),
        rms_eps=config.number("rms_norm_eps"),
        rope=_rope(config, head_dim),
        qkv_bias=arch == "qwen2" or attention_bias,
        output_bias=arch == "llama" and attention_bias,
        tied_head=_tied(config, tensors),
    )
    config.refuse_unknown(_HARMLESS_KEYS, _NEUTRAL_KEYS)
    return checked(spec)


def _refuse_variants(config: Header) -> None:
    activation = config.text("hidden_act")
    if activation != "silu":
        raise ModelFileError(f"activation '{activation}' is not supported (supported: silu)")
    if config.flag("mlp_bias", default=False):
        raise ModelFileError("config.json key 'mlp_bias' true is not supported")
    if config.flag("use_sliding_window", default=False):
        raise ModelFileError("config.json key 'use_sliding_window' true is not supported")
    if config.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelFileError(
            "config.json key 'partial_rotary_factor' other than 1 is not supported"
        )
    if config.has("quantization_config"):
        raise ModelFileError(
            "config.json key 'quantization_config' is not supported; "
            "use float safetensors or a GGUF file"
        )


def _refuse_layer_types(config: Header) -> None:
    kinds = config.raw("layer_types")
    if kinds is None:
        return
    if not isinstance(kinds, list):
        raise ModelFileError("config.json key 'layer_types' is not a list")
    for kind in kinds:
        if kind != "full_attention":
            raise ModelFileError(
                f"config.json key 'layer_types' names {kind!r}; only 'full_attention' is supported"
            )


def _tied(config: Header, tensors: Mapping[str, LogicalTensor]) -> bool:
    """An absent key means what the files say; a key that they contradict is an error."""
    separate = "output.weight" in tensors
    tied = config.flag("tie_word_embeddings", default=not separate)
    if not tied and not separate:
        raise ModelFileError("tensor 'output.weight' is missing and the embeddings are not tied")
    return tied


def _rope(config: Header, head_dim: int) -> RopeSpec:
    # Newer files keep theta and the scaling together in ``rope_parameters``.
    if config.has("rope_parameters") and config.has("rope_scaling"):
        raise ModelFileError("config.json has both keys 'rope_parameters' and 'rope_scaling'")
    scaling = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    theta = config.number("rope_theta", 10000.0)
    rope = _scaled(scaling, head_dim, scaling.number("rope_theta", theta))
    scaling.refuse_unknown((), {"partial_rotary_factor": 1.0})
    return rope


def _scaled(scaling: Header, head_dim: int, theta: float) -> RopeSpec:
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in _ROPE_TYPES:
        known = ", ".join(_ROPE_TYPES)
        raise ModelFileError(f"rope type '{kind}' is not supported (supported: {known})")
    if kind == "default":
        return default_rope(head_dim, theta, interleaved=False)
    if kind == "linear":
        return linear_rope(head_dim, theta, scaling.number("factor"), interleaved=False)
    parameters = Llama3Scaling(
        factor=scaling.number("factor"),
        low_freq_factor=scaling.number("low_freq_factor"),
        high_freq_factor=scaling.number("high_freq_factor"),
        original_context=scaling.integer("original_max_position_embeddings", limit=MAX_CONTEXT),
    )
    if parameters.high_freq_factor <= parameters.low_freq_factor:
        raise ModelFileError("rope key 'high_freq_factor' must exceed 'low_freq_factor'")
    return llama3_rope(head_dim, theta, parameters, interleaved=False)

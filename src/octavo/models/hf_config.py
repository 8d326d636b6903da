"""ModelSpec from the ``config.json`` of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.backends.program import RopeSpec
from octavo.errors import ModelFileError
from octavo.models.rope import Llama3Scaling, default_rope, linear_rope, llama3_rope
from octavo.models.spec import ARCHITECTURES, MAX_CONTEXT, MAX_LAYERS, Header, ModelSpec, checked
from octavo.weights.tensor import LogicalTensor


def spec_from_hf(
    config_values: Mapping[str, Any], tensors: Mapping[str, LogicalTensor]
) -> ModelSpec:
    """Read the spec.

    Raises:
        ModelFileError: an unknown model type, activation or rope type, or a missing or
            senseless key.
    """
    config = Header(config_values, "config.json")
    arch = config.text("model_type")
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelFileError(f"model_type '{arch}' is not supported (supported: {known})")
    _refuse_variants(config)
    attention_bias = config.flag("attention_bias", default=False)
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", max(hidden // heads, 1))
    return checked(
        ModelSpec(
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
    )


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


def _tied(config: Header, tensors: Mapping[str, LogicalTensor]) -> bool:
    """An absent key means what the files say; a key that they contradict is an error."""
    separate = "output.weight" in tensors
    tied = config.flag("tie_word_embeddings", default=not separate)
    if not tied and not separate:
        raise ModelFileError("tensor 'output.weight' is missing and the embeddings are not tied")
    return tied


def _rope(config: Header, head_dim: int) -> RopeSpec:
    # Newer files keep theta and the scaling together in ``rope_parameters``.
    scaling = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    theta = config.number("rope_theta", 10000.0)
    theta = scaling.number("rope_theta", theta)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default":
        return default_rope(head_dim, theta, interleaved=False)
    if kind == "linear":
        return linear_rope(head_dim, theta, scaling.number("factor"), interleaved=False)
    if kind == "llama3":
        parameters = Llama3Scaling(
            factor=scaling.number("factor"),
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
            original_context=scaling.integer("original_max_position_embeddings", limit=MAX_CONTEXT),
        )
        if parameters.high_freq_factor <= parameters.low_freq_factor:
            raise ModelFileError("rope key 'high_freq_factor' must exceed 'low_freq_factor'")
        return llama3_rope(head_dim, theta, parameters, interleaved=False)
    raise ModelFileError(
        f"rope type '{kind}' is not supported (supported: default, linear, llama3)"
    )

"""A model of the transformers library, read from a checkpoint: right and whole, or an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from math import prod
from typing import Any

import torch
import transformers  # which imports a module when a name of it is asked for
from safetensors import SafetensorError

from paged_backends.checkpoint.config_fields import (
    ConfigFields,
    choose_dtype,
    refuse_biased,
    stated_dtype,
)
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.json_file import damaged, one_line, read_json_object
from paged_backends.checkpoint.quantized.formats import check_effects, check_types
from paged_backends.checkpoint.weight_names import check_unused
from paged_backends.checkpoint.weights import Shape, StoredWeights, open_weights
from paged_backends.runners.transformers.attention_port import IMPLEMENTATION, register
from paged_backends.runners.transformers.odd_fields import blamed
from paged_backends.runners.transformers.stored_parts import check_parts, odd_expert
from paged_core.errors import CheckpointError, UnsupportedModel
from paged_core.field_rules import shown
from paged_core.settings.schema import EngineSettings


def load_model(checkpoint: Checkpoint, settings: EngineSettings, device: torch.device) -> Any:
    """Return the causal language model of ``checkpoint``, in evaluation mode on ``device``.

    Raises:
        CheckpointError: its weights are missing, incomplete or in a form that may not be loaded.
        UnsupportedModel: transformers does not know it, or it is no causal language model.
    """
    refuse_biased(checkpoint)
    _check_kind(checkpoint, trust_remote_code=settings.trust_remote_code)
    _check_quantization(checkpoint)
    checkpoint.read.update(_fields_read(checkpoint))
    weights = open_weights(checkpoint, allow_pickle=settings.allow_pickle)
    _check_index(checkpoint)
    check_parts(checkpoint)
    config = _config(checkpoint, device, trust_remote_code=settings.trust_remote_code)
    _check_interface(config)
    register()
    try:
        _check_count(checkpoint, config, weights)
        with _dequantized(checkpoint):
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                checkpoint.folder,
                config=config,
                dtype=choose_dtype(settings.dtype, checkpoint, device),
                attn_implementation=IMPLEMENTATION,
                use_safetensors=bool(checkpoint.weight_files),
                trust_remote_code=settings.trust_remote_code,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # the report names them, the error does not
                output_loading_info=True,
            )
    except ImportError as error:
        raise UnsupportedModel(
            f"{checkpoint.model_type} needs a package that is not installed: {one_line(error, 300)}"
        ) from error
    except SafetensorError as error:
        raise CheckpointError(
            f"the weights in {checkpoint.folder} are corrupt ({one_line(error, 300)}); download "
            "them again"
        ) from error
    except (torch.OutOfMemoryError, CheckpointError):
        raise
    except KeyError as error:
        if error.args == (IMPLEMENTATION,):
            raise _outside(checkpoint.model_type) from error
        raise _unloadable(checkpoint, error, weights) from error
    except Exception as error:  # each architecture has its own checks
        raise _unloadable(checkpoint, error, weights) from error
    text = model.config.get_text_config()
    if not checkpoint.config.get("quantization_config"):
        own = model.state_dict().items()
        weights.check_dtypes({n.rpartition(".")[2] for n, t in own if not t.is_floating_point()})
    tied = bool(getattr(text, "tie_word_embeddings", False))
    _check_report(checkpoint, report, weights.shapes, tied=tied)
    return model.eval().requires_grad_(False).to(device)


def _dequantized(checkpoint: Checkpoint) -> AbstractContextManager[None]:
    method = checkpoint.quantized_as
    if method == "fp8":
        from paged_backends.runners.transformers.float8 import dequantized_by_block

        return dequantized_by_block()
    if method != "compressed-tensors" or not transformers.utils.is_compressed_tensors_available():
        return nullcontext()  # the library says what it lacks
    from paged_backends.runners.transformers.compressed_tensors import dequantized_by_scheme

    return dequantized_by_scheme()


def _check_index(checkpoint: Checkpoint) -> None:
    name = "model.safetensors" if checkpoint.weight_files else "pytorch_model.bin"
    index = checkpoint.folder / f"{name}.index.json"
    if (checkpoint.folder / name).is_file() or read_json_object(index).get("metadata") is not None:
        return
    raise CheckpointError(
        f'{index} has no metadata, which transformers reads; write "metadata": {{}} there, or '
        "download the checkpoint again"
    )


def _unloadable(
    checkpoint: Checkpoint, error: Exception, weights: StoredWeights
) -> CheckpointError | UnsupportedModel:
    if (odd := odd_expert(weights.shapes)) is not None:
        return damaged(f"in {checkpoint.folder}, {odd}")
    again = "compare config.json with that of its source, or download it again"
    if (method := checkpoint.quantized_as) is not None:
        again = f"take another quantisation of the model than {shown(method)}, or {again}"
    return blamed(checkpoint, error) or CheckpointError(
        f"the checkpoint {checkpoint.folder} ({checkpoint.model_type}) cannot be loaded: "
        f"transformers raised {type(error).__name__} ({one_line(error, 300)}); {again}"
    )


def _check_kind(checkpoint: Checkpoint, *, trust_remote_code: bool) -> None:
    kind = checkpoint.model_type
    if kind not in transformers.CONFIG_MAPPING:
        if "auto_map" in checkpoint.config and trust_remote_code:
            return
        if "auto_map" in checkpoint.config:
            raise UnsupportedModel(
                f"{checkpoint.folder} is of type {kind}, whose code comes with the checkpoint and "
                "would run here; set trust_remote_code if you trust its source"
            )
        raise UnsupportedModel(
            f"{checkpoint.folder} is of the type {kind!r}, which this version of transformers does "
            "not know; check model_type in its config.json, or install a newer transformers"
        )
    if checkpoint.config.get("is_encoder_decoder"):
        raise UnsupportedModel(
            f"{kind} is an encoder-decoder model; only decoder-only models can be served"
        )
    if transformers.CONFIG_MAPPING[kind] not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        if "text_config" in checkpoint.config:
            raise UnsupportedModel(
                f"{kind} is not a causal language model for transformers, which knows it only with "
                "what it reads beside text; choose one that reads text alone, or save its text "
                "model as a checkpoint of its own"
            )
        raise UnsupportedModel(
            f"{kind} is not a causal language model for transformers (the checkpoint was saved as "
            f"{', '.join(checkpoint.architectures) or 'nothing in particular'}); choose one that "
            "generates text"
        )


def _fields_read(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield paths of fields that the text model's class reads, and that are not its defaults."""
    if checkpoint.model_type not in transformers.CONFIG_MAPPING:
        return  # code from the checkpoint
    kind = transformers.CONFIG_MAPPING[checkpoint.model_type]
    try:
        usual = kind()
    except Exception:  # noqa: BLE001 - some architectures have no defaults
        yield from checkpoint.config
        return
    text = usual.get_text_config(decoder=True)
    nested = [name for name in kind.sub_configs if getattr(usual, name, None) is text]
    for made, within in ((usual, ""), *((text, name) for name in nested)):
        given = checkpoint.config.get(within, {}) if within else checkpoint.config
        values = made.to_dict()  # what layers have of their own is no attribute
        for name in {*values, *made.attribute_map}:
            value = values.get(made.attribute_map.get(name, name))
            if isinstance(given, Mapping) and given.get(name) != value:
                yield f"{within}.{name}" if within else name


def _check_interface(config: Any) -> None:
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return  # code from the checkpoint; a trial run will tell
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not kind._can_set_attn_implementation():
        raise _outside(config.model_type)


def _check_count(checkpoint: Checkpoint, config: Any, weights: StoredWeights) -> None:
    """Refuse a model of far more numbers than are stored, before any of it takes memory.

    Up to twice as many are left to the library, whose report names each weight that is missing.
    """
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return  # code from the checkpoint
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            deepcopy(config), dtype=torch.float32, attn_implementation=IMPLEMENTATION
        )
    sizes, shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}, weights.shapes
    count, stored = sum(map(prod, sizes.values())), sum(map(prod, shapes.values()))
    if checkpoint.config.get("quantization_config"):  # in one bit or more each
        files = checkpoint.weight_files or checkpoint.pickle_files
        stored = 8 * sum(path.stat().st_size for path in files)
    if count > 2 * stored:
        other = next((name for name in sizes if shapes.get(name) != sizes[name]), "")
        raise CheckpointError(
            f"{checkpoint.config_path} describes a model of type {checkpoint.model_type}, of "
            f"{count} numbers, with the architecture's defaults where it says nothing, and the "
            f"weights hold {stored} at most; the two do not belong together: {other} has the shape "
            f"{sizes.get(other)} by the one, and {shapes.get(other, 'none')} by the other"
        )


def _outside(kind: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{kind} cannot be served: its attention does not go through the attention interface of "
        "transformers, so the paged cache cannot be put in; choose a model whose attention does"
    )


def _check_quantization(checkpoint: Checkpoint) -> None:
    described = checkpoint.config.get("quantization_config")
    if described is None:
        return
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    method = described.get("quant_method")
    known = (name.startswith(str(method)) for name in AUTO_QUANTIZATION_CONFIG_MAPPING)
    if method is not None and not any(known):
        raise UnsupportedModel(
            f"{checkpoint.place} is quantised by {shown(method)}, which transformers "
            f"{transformers.__version__} does not know; take another quantisation of the model"
        )
    fields = ConfigFields(checkpoint).part("quantization_config", described)
    if method is None and not any(map(fields.any, ("load_in_8bit", "load_in_4bit"))):
        raise fields.wrong("quant_method", "given; delete quantization_config if there is none")
    if method in ("gptq", "awq"):
        check_types(fields)
    if method == "compressed-tensors":
        check_effects(fields)


def _config(checkpoint: Checkpoint, device: torch.device, *, trust_remote_code: bool) -> Any:
    try:
        config = transformers.AutoConfig.from_pretrained(
            checkpoint.folder,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            dtype=stated_dtype(checkpoint),
        )
    except ImportError:
        raise
    except Exception as error:  # each architecture has its own checks
        raise blamed(checkpoint, error) or CheckpointError(
            f"{checkpoint.config_path} does not describe a model of type {checkpoint.model_type}: "
            f"{one_line(error, 300)}"
        ) from error
    config.return_dict = True  # as outputs are read
    text = config.get_text_config()
    if getattr(text, "use_bidirectional_attention", None) == "vision":
        text.use_bidirectional_attention = None  # it is of the tokens of an image, and none come
    method = checkpoint.quantized_as
    if method in ("compressed-tensors", "mxfp4") or (method == "fp8" and device.type == "cpu"):
        # at once: not in the first call of the whole model, whose parts are called here, and not
        # where some package for its kernels is installed
        config.quantization_config = {
            **checkpoint.config["quantization_config"],
            "dequantize": True,
        }
    return config


def _check_report(
    checkpoint: Checkpoint, report: dict[str, Any], shapes: Mapping[str, Shape], *, tied: bool
) -> None:
    """Refuse what the library accepts: weights made up at random, and weights left out."""
    folder = checkpoint.folder
    if report.get("mismatched_keys"):
        if (odd := odd_expert(shapes)) is not None:
            raise damaged(f"in {folder}, {odd}")
        names = sorted(str(entry[0]) for entry in report["mismatched_keys"])
        raise CheckpointError(
            f"config.json in {folder} says other shapes than those that are stored of "
            f"{_list(names)}; the two files do not belong together"
        )
    if report.get("missing_keys"):
        raise CheckpointError(
            f"{folder} lacks {_list(sorted(report['missing_keys']))} among its weights; it was "
            "saved from another kind of model, or incompletely"
        )
    if report.get("error_msgs"):
        raise CheckpointError(f"{folder} cannot be loaded: {report['error_msgs'][0]}")
    unused = map(str, report.get("unexpected_keys") or ())
    check_unused(unused, place=folder, config=checkpoint.config, tied=tied)


def _list(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

"""One forward pass of packed tokens of many sequences: two ways to the same numbers.

`LeanDecoder` is written out for the Llama family (Llama, Qwen2, Qwen3, Mistral): about half the calls into torch of
the general way. `GeneralDecoder` lets the transformers module itself run, through its attention interface. Both read
the very parameters of the given module and copy none.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from qwengyre.engine.attention import DecodeRows, Plan, attend, packed_attention
from qwengyre.engine.kv import KVShape, layer_views
from qwengyre.errors import EngineError

_LEAN_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_FIXED_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
_ATTENTION = "qwengyre_packed"
_VOLATILE = frozenset({"transformers_version", "dtype", "torch_dtype"})
_PROBE_TOKENS = 12
_CHUNK_WORK = 256 * 135_000_000  # parameters x tokens: about half a second of one CPU core
_LEAST_CHUNK, _LARGEST_CHUNK = 64, 1024
_PROBE_TOLERANCE = {torch.float32: 1e-3}
_PROBE_TOLERANCE_HALF = 0.1

AttentionInterface.register(_ATTENTION, packed_attention)


class Decoder(Protocol):
    """ids [N] int64, positions [N] int64, plan, wanted [n] int64 (packed tokens) -> logits [n, V] float32."""

    def __call__(self, ids: Tensor, positions: Tensor, plan: Plan, wanted: Tensor) -> Tensor: ...


def kv_shape(model: nn.Module) -> KVShape:
    """Geometry of the keys and values of a transformers decoder."""
    config: Any = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    parameter = next(model.parameters())
    groups = config.num_attention_heads // heads
    return KVShape(config.num_hidden_layers, heads, groups, width, parameter.dtype, parameter.device)


def chunk_tokens(parameters: int, device: torch.device) -> int:
    """Prompt tokens a pass: as many as take about half a second on a CPU core, in bounds; the most on other devices."""
    wanted = _CHUNK_WORK // parameters if device.type == "cpu" else _LARGEST_CHUNK
    return min(_LARGEST_CHUNK, max(_LEAST_CHUNK, wanted))


def copy_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy `weights` into the parameters of the same names, in place: all or none."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in weights.items():
        if name not in parameters or parameters[name].shape != tensor.shape:
            expected = tuple(parameters[name].shape) if name in parameters else "no such parameter"
            raise EngineError(
                f"weight {name} has shape {tuple(tensor.shape)}, the model: {expected}; nothing was loaded"
            )
    with torch.no_grad():
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)


def model_digest(model: nn.Module) -> str:
    """Hex digest of a model's configuration and parameter shapes, not of its weights: those have a version."""
    config: Any = model.config
    facts = {key: value for key, value in config.to_dict().items() if key not in _VOLATILE and key[0] != "_"}
    shapes = [(name, str(p.dtype), tuple(p.shape)) for name, p in sorted(model.named_parameters())]
    return hashlib.sha256(json.dumps([facts, shapes], sort_keys=True, default=str).encode()).hexdigest()


def choose_decoder(model: nn.Module, window: int) -> Decoder:
    """The fastest decoder that reproduces `model`. Raises EngineError when none does."""
    config: Any = model.config
    sliding = getattr(config, "sliding_window", None)
    if sliding and sliding < window and _only_layer_type(config) != "full_attention":
        raise EngineError(
            f"the model attends to {sliding} tokens back, the engine's window is {window}: the embedded engine has no "
            f"sliding attention. Lower the window to {sliding} or choose another engine."
        )
    decoder: Decoder = LeanDecoder(model, window) if _is_lean(config) else GeneralDecoder(model)
    _probe(model, decoder)
    return decoder


def _only_layer_type(config: Any) -> str | None:
    kinds = set(getattr(config, "layer_types", None) or ())
    return kinds.pop() if len(kinds) == 1 else None


def _is_lean(config: Any) -> bool:
    rope = getattr(config, "rope_parameters", None) or {}
    return config.model_type in _LEAN_FAMILIES and rope.get("rope_type", "default") in _FIXED_ROPES


def _probe(model: nn.Module, decoder: Decoder) -> None:
    """Compare the decoder, token by token, with the module's own full forward on a few ids."""
    shape = kv_shape(model)
    vocabulary: int = model.config.vocab_size  # pyright: ignore
    ids = torch.arange(1, _PROBE_TOKENS + 1, device=shape.device) * 7919 % vocabulary
    slab = shape.slab(1, _PROBE_TOKENS)
    training = model.training
    model.eval()
    with torch.inference_mode():
        truth = model(input_ids=ids[None], use_cache=False).logits[0].float()
        made = torch.cat([_probe_token(decoder, slab, ids, position) for position in range(_PROBE_TOKENS)])
    model.train(training)
    tolerance = _PROBE_TOLERANCE.get(shape.dtype, _PROBE_TOLERANCE_HALF) * max(1.0, float(truth.abs().max()))
    worst = float((made - truth).abs().max())
    if not worst <= tolerance:
        raise EngineError(
            f"{type(model).__name__} computes something that the embedded engine does not reproduce (logits differ by "
            f"{worst:.2g}). Choose another engine for this model."
        )


def _probe_token(decoder: Decoder, slab: Tensor, ids: Tensor, position: int) -> Tensor:
    at = torch.tensor([position], device=ids.device)
    rows = DecodeRows(layer_views(slab), 0, 1, position + 1, at, None)
    return decoder(ids[position : position + 1], at, Plan((rows,), ()), torch.zeros_like(at))


class GeneralDecoder:
    """Any transformers decoder with standard attention, run by a twin module that shares all parameters."""

    def __init__(self, model: nn.Module) -> None:
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self._twin: Any = copy.deepcopy(model, shared).eval()  # adapters, if any, are modules like others
        self._twin.config._attn_implementation = _ATTENTION
        self._body = self._twin.get_decoder()

    def __call__(self, ids: Tensor, positions: Tensor, plan: Plan, wanted: Tensor) -> Tensor:
        hidden = self._body(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, plan=plan
        ).last_hidden_state
        return self._twin.get_output_embeddings()(hidden[0, wanted]).float()


class LeanDecoder:
    """The Llama family, written out. Keeps references to the module's parameter objects."""

    def __init__(self, model: nn.Module, window: int) -> None:
        whole: Any = model
        body = whole.get_decoder()
        shape = kv_shape(model)
        self._embed: Tensor = body.embed_tokens.weight
        self._norm = _Norm(body.norm)
        self._head = _Product(whole.get_output_embeddings())
        positions = torch.arange(window, device=shape.device)[None]
        cosine, sine = body.rotary_emb(torch.empty(0, dtype=shape.dtype, device=shape.device), positions)
        half = shape.width // 2
        self._cosine = cosine[0, :, None].contiguous()  # [window, 1, width]
        self._sine = torch.cat((-sine[0, :, :half], sine[0, :, half:]), -1)[:, None].contiguous()
        self._layers = [_LeanLayer(index, layer, shape) for index, layer in enumerate(body.layers)]

    def __call__(self, ids: Tensor, positions: Tensor, plan: Plan, wanted: Tensor) -> Tensor:
        hidden = F.embedding(ids, self._embed)
        rope = (self._cosine[positions], self._sine[positions])
        for layer in self._layers:
            hidden = layer(hidden, rope, plan)
        return self._head(self._norm(hidden[wanted])).float()


class _Norm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in as few calls and passes as torch allows."""

    def __init__(self, norm: Any) -> None:
        self._weight: Tensor = norm.weight
        self._share = 1.0 / len(norm.weight)
        self._epsilon = torch.full((1,), norm.variance_epsilon, device=norm.weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._epsilon, size, size, value=self._share).rsqrt_().to(x.dtype)
        return (x * scale).mul_(self._weight)


class _Product:
    """x @ weight.T (+ bias) (+ scale * x @ down.T @ up.T of an adapter), and the same added to a residual."""

    def __init__(self, linear: Any) -> None:
        self._weight: Tensor = linear.weight
        self._bias: Tensor | None = linear.bias
        self._adapters = _adapters(linear)

    def __call__(self, x: Tensor) -> Tensor:
        return self._adapted(F.linear(x, self._weight, self._bias), x)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        total = torch.addmm(residual, x, self._weight.t())
        return self._adapted(total if self._bias is None else total.add_(self._bias), x)

    def _adapted(self, total: Tensor, x: Tensor) -> Tensor:
        for down, up, scale in self._adapters:
            total.addmm_(F.linear(x, down), up.t(), alpha=scale)
        return total


def _adapters(linear: Any) -> tuple[tuple[Tensor, Tensor, float], ...]:
    """(down [r, in], up [out, r], scale) of each low-rank adapter in a layer made by `peft`; none in a plain one."""
    if not hasattr(linear, "lora_A"):
        return ()
    if linear.merged or linear.disable_adapters or linear.lora_variant or any(linear.lora_bias.values()):
        raise EngineError("the model has adapters that are more than A and B; the embedded engine serves plain LoRA")
    active = [name for name in linear.active_adapters if name in linear.lora_A]
    return tuple((linear.lora_A[n].weight, linear.lora_B[n].weight, float(linear.scaling[n])) for n in active)


class _LeanLayer:
    """norm, attention with rotary positions, norm, gated MLP."""

    def __init__(self, index: int, layer: Any, shape: KVShape) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._index = index
        self._shape = shape
        self._scale: float = attention.scaling
        self._norm_in, self._norm_out = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self._query, self._key, self._value = map(_Product, (attention.q_proj, attention.k_proj, attention.v_proj))
        self._head_norms = (_Norm(attention.q_norm), _Norm(attention.k_norm)) if hasattr(attention, "q_norm") else None
        self._gate, self._up = _Product(mlp.gate_proj), _Product(mlp.up_proj)
        self._out, self._down = _Product(attention.o_proj), _Product(mlp.down_proj)
        self._activation: Callable[[Tensor], Tensor] = mlp.act_fn
        self._silu = isinstance(mlp.act_fn, nn.SiLU) or type(mlp.act_fn).__name__ == "SiLUActivation"

    def __call__(self, hidden: Tensor, rope: tuple[Tensor, Tensor], plan: Plan) -> Tensor:
        normed, heads = self._norm_in(hidden), (len(hidden), -1, self._shape.width)
        query, key = self._query(normed).view(heads), self._key(normed).view(heads)
        value = self._value(normed).view(heads)
        if self._head_norms is not None:
            query, key = self._head_norms[0](query), self._head_norms[1](key)
        query, key = _rotate(query, rope), _rotate(key, rope)
        query = query.view(len(query), self._shape.heads, self._shape.groups, self._shape.width)
        hidden = self._out.added_to(hidden, attend(self._index, query, key, value, plan, self._scale))
        normed = self._norm_out(hidden)
        gate = self._gate(normed)
        gate = F.silu(gate, inplace=True) if self._silu else self._activation(gate)
        return self._down.added_to(hidden, gate.mul_(self._up(normed)))


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """x * cos + rotate_half(x) * sin, the sign of rotate_half being in the sine table."""
    return torch.addcmul(x * rope[0], x.roll(x.shape[-1] // 2, -1), rope[1])

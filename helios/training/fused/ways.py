"""Ways to compute the gradients of a stack of models.

``vmap`` runs a model's own ``forward`` for all models at once. ``traced`` records the operators that this makes, once,
and then runs them without Python's and ``torch.func``'s cost for each: linear layers have become batched matrix
products, and convolutions grouped ones. On a GPU ``graph`` starts all of them at once, as a CUDA graph, and ``streams``
does so with each model's own operators side by side. ``compiled`` has ``torch.compile`` make fewer and larger operators
of them, on a GPU of those of ``streams``. Which is fastest is measured, beside training one model after another.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._C._functorch import is_batchedtensor
from torch.func import functional_call, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_unflatten

from helios.errors import HeliosError
from helios.training.fused.objective import Objective

aten = torch.ops.aten

Step = Callable[..., Any]
"""Fills the gradients and returns each model's loss and metrics:
``step(parameters, buffers, gradients, scale, batch)``."""
POOLING = {nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d}
NORMALISING = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}
STREAMS = 32
"""Most streams on which models run side by side."""
COPIES_NOTHING = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.detach.default}
DIRECT: Mapping[Any, Any] = {
    aten.add.Tensor: torch.add,
    aten.bmm.default: torch.bmm,
    aten.div.Tensor: torch.div,
    aten.gather.default: torch.gather,
    aten.mul.Tensor: torch.mul,
    aten.ne.Scalar: torch.ne,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.relu.default: torch.relu,
    aten.sub.Tensor: torch.sub,
    aten.sum.dim_IntList: torch.sum,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.where.self: torch.where,
}
"""Operators by PyTorch's ordinary functions, which take about half the time to start."""
METHODS = {aten.view.default: "view", aten.copy_.default: "copy_", aten.expand.default: "expand"}
LARGE = 2**14
"""Elements of a gradient from which on the memory for a copy counts more than the time to start an operator."""
MEASURED_S = 0.2
"""About how long each way is measured, s."""


class CannotFuse(HeliosError):
    """A module cannot be run for many models at once."""


@dataclass(frozen=True)
class Obstacle:
    """Reason why a model cannot be fused."""

    module: str
    reason: str

    def __str__(self) -> str:
        return f"{self.module}: {self.reason}"


def autocast(device: torch.device, precision: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return PyTorch's mixed precision, or nothing for None."""
    if precision is None:
        return nullcontext()
    # The cache of cast weights would keep tensors of one vmap alive into the next.
    context: AbstractContextManager[Any] = torch.autocast(device.type, dtype=precision, cache_enabled=False)
    return context


class _Step(nn.Module):  # type: ignore[misc]  # because torch is not followed: it is optional
    """Module that returns a model's loss and metrics.

    So ``functional_call`` gives a model its tensors for all of a step, not for one call alone.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, *batch: Any) -> Any:
        return self.objective(self.model, list(batch))


class Functional:
    """A model's loss and metrics as a function of stacked parameters and buffers.

    Parameters
    ----------
    template : nn.Module
        A model of the stack, for its structure.
    names, buffer_names : sequence of str
        Names of the trained parameters, and of all other tensors of a model.
    """

    def __init__(
        self,
        template: nn.Module,
        objective: Objective,
        names: Sequence[str],
        buffer_names: Sequence[str],
        precision: torch.dtype | None,
    ) -> None:
        self._step = _Step(template, objective)
        self.names = [f"model.{name}" for name in names]
        self.buffer_names = [f"model.{name}" for name in buffer_names]
        self.precision = precision
        # Operators made of others, such as a whole LSTM, have no rule for many models. Below a level of
        # differentiation PyTorch takes them apart. Other models need not pay for that.
        self.take_apart = any(isinstance(module, nn.RNNBase) for module in template.modules())
        for module in template.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.forward = partial(_embed_with_padding, module)
            elif self.take_apart:
                continue  # what is below would need derivatives of its own there
            elif type(module) in POOLING and not getattr(module, "return_indices", False):
                module.forward = partial(_PerChannel.apply, partial(type(module).forward, module))
            elif type(module) in NORMALISING and module.momentum is not None and module.affine:
                module.forward = partial(_normalise_batch, module)

    def _one(self, parameters: Sequence[Any], buffers: Sequence[Any], batch: Sequence[Any]) -> Any:
        """Return the loss and the metrics of one model."""
        tensors = dict(zip(self.names, parameters, strict=True)) | dict(zip(self.buffer_names, buffers, strict=True))
        return functional_call(self._step, tensors, tuple(batch))

    def _losses(self, parameters: Sequence[Any], buffers: Sequence[Any], batch: Sequence[Any]) -> Any:
        """Return the losses and the metrics of the models."""

        def one(parameters: Sequence[Any], *others: Any) -> Any:
            if self.take_apart:
                loss, _, metrics = vjp(lambda own: self._one(own, *others), parameters, has_aux=True)
                return loss, metrics
            return self._one(parameters, *others)

        return self._map_over_models(one, parameters, buffers, batch)

    def evaluate(self, parameters: Sequence[Any], buffers: Sequence[Any], batch: Sequence[Any]) -> Any:
        """Return a row for each model, its loss and its metrics."""
        losses, metrics = self._losses(parameters, buffers, batch)
        return torch.stack([losses, *metrics], 1)

    def _map_over_models(self, one: Callable[..., Any], parameters: Sequence[Any], *others: Any) -> Any:
        device = parameters[0].device
        with autocast(device, self.precision), self._batching_rules(device):
            # "different": each model draws its own dropout.
            return vmap(one, randomness="different")(parameters, *others)

    def _batching_rules(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context with batching rules for all layers."""
        if not self.take_apart:
            return _as_one_batch()
        # The fast attention of CPUs has none, nor have recurrent layers of cuDNN.
        if device.type == "cpu":
            context: AbstractContextManager[Any] = sdpa_kernel(SDPBackend.MATH)
            return context
        return torch.backends.cudnn.flags(enabled=False) if device.type == "cuda" else nullcontext()

    def step(
        self,
        parameters: Sequence[Any],
        buffers: Sequence[Any],
        gradients: Sequence[Any],
        scale: Sequence[Any],
        batch: Sequence[Any],
    ) -> Any:
        """Fill ``gradients``, and return each model's loss and metrics as a row.

        The sum of the losses is differentiated: it has for each model the gradient that the model has alone.
        """
        if self.take_apart:
            losses, metrics, found = self._map_over_models(self._one_step, parameters, buffers, scale, batch)
        else:
            leaves = [parameter.detach().requires_grad_() for parameter in parameters]
            losses, metrics = self._losses(leaves, buffers, batch)
            total = (losses * scale[0]).sum() if scale else losses.sum()
            found = torch.autograd.grad(total, leaves, allow_unused=True)
        for gradient, own in zip(gradients, found, strict=True):
            if own is None:
                gradient.zero_()
            else:
                gradient.copy_(own)
        return torch.stack([losses.detach(), *metrics], 1) if metrics else losses.detach().unsqueeze(1)

    def _one_step(
        self, parameters: Sequence[Any], buffers: Sequence[Any], scale: Sequence[Any], batch: Sequence[Any]
    ) -> Any:
        loss, pull_back, metrics = vjp(lambda own: self._one(own, buffers, batch), parameters, has_aux=True)
        return loss, metrics, pull_back(scale[0].to(loss.dtype) if scale else torch.ones_like(loss))[0]


class _PerChannel(torch.autograd.Function):  # type: ignore[misc]  # because torch is not followed: it is optional
    """Runs a function of separate channels for many models.

    That is how grouped convolutions store them. PyTorch's own rules copy each array into another order, and take
    the normalisation of batches apart.
    """

    @staticmethod
    def forward(function: Callable[..., Any], images: Any, *of_channels: Any) -> Any:
        return function(images, *of_channels)

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError("Only many models at once are differentiated.")

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[Any], function: Callable[..., Any], images: Any, *of_channels: Any) -> Any:
        count = info.batch_size
        if in_dims[1] is None:
            images = images.unsqueeze(0).expand(count, *images.shape)
        images = images.movedim(in_dims[1] or 0, 1)
        side_by_side = images.reshape(images.shape[0], count * images.shape[2], *images.shape[3:])
        output = function(side_by_side, *(values.reshape(-1) for values in of_channels))
        return output.reshape(output.shape[0], count, -1, *output.shape[2:]), 1


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # because torch is not followed: it is optional
    """Attention of many models as one batch, since it has no parameters."""

    @staticmethod
    def forward(function: Callable[..., Any], query: Any, key: Any, value: Any, mask: Any) -> Any:
        return function(query, key, value, mask)

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError("Only many models at once are differentiated.")

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[Any], function: Callable[..., Any], *tensors: Any) -> Any:
        count = info.batch_size

        def with_models(tensor: Any, dimension: int | None) -> Any:
            if dimension is None:
                return tensor.unsqueeze(0).expand(count, *tensor.shape)
            return tensor.movedim(dimension, 0)

        query, key, value = (
            with_models(tensor, place).flatten(0, 1) for tensor, place in zip(tensors[:3], in_dims[1:4], strict=True)
        )
        mask = tensors[3]
        if mask is not None and (in_dims[4] is not None or mask.dim() > 2):
            mask = with_models(mask, in_dims[4])
            mask = mask.reshape(count, *[1] * (query.dim() + 1 - mask.dim()), *mask.shape[1:])
            mask = mask.expand(count, query.shape[0] // count, *mask.shape[2:]).flatten(0, 1)
        return function(query, key, value, mask).unflatten(0, (count, -1)), 0


@contextmanager
def _as_one_batch() -> Iterator[None]:
    """Have attention and linear layers batch the models.

    PyTorch's own rules take attention apart, and copy the weights of a linear layer for each position of a series.
    """
    functions = nn.functional
    attention, linear = functions.scaled_dot_product_attention, functions.linear

    def attend(  # noqa: PLR0917  # because it stands for PyTorch's
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> Any:
        function = partial(attention, dropout_p=dropout_p, is_causal=is_causal, **more)
        apply = _Attention.apply if is_batchedtensor(query) else lambda call, *tensors: call(*tensors)
        return apply(function, query, key, value, attn_mask)

    def multiply(inputs: Any, weight: Any, bias: Any = None) -> Any:
        if inputs.dim() < 3 or not is_batchedtensor(weight):
            return linear(inputs, weight, bias)
        return linear(inputs.flatten(0, -2), weight, bias).unflatten(0, inputs.shape[:-1])

    functions.scaled_dot_product_attention, functions.linear = attend, multiply
    try:
        yield
    finally:
        functions.scaled_dot_product_attention, functions.linear = attention, linear


def _normalise_batch(module: Any, images: Any) -> Any:
    """Do what ``forward`` of PyTorch's BatchNorm does."""
    if module.training and module.track_running_stats:
        module.num_batches_tracked.add_(1)

    def normalise(images: Any, weight: Any, bias: Any, mean: Any = None, variance: Any = None) -> Any:
        by_batch = module.training or mean is None
        return nn.functional.batch_norm(images, mean, variance, weight, bias, by_batch, module.momentum, module.eps)

    running = (module.running_mean, module.running_var) if module.track_running_stats else ()
    return _PerChannel.apply(normalise, images, module.weight, module.bias, *running)


def _embed_with_padding(module: nn.Embedding, indices: Any) -> Any:
    """Look up rows, of which that for padding has no gradient.

    PyTorch's own ``padding_idx`` is not heeded for many models (2.13).
    """
    rows = torch.arange(module.num_embeddings, device=module.weight.device).unsqueeze(1)
    weight = torch.where(rows == module.padding_idx, module.weight.detach(), module.weight)
    return nn.functional.embedding(
        indices, weight, None, module.max_norm, module.norm_type, module.scale_grad_by_freq, module.sparse
    )


def trace(function: Step, arguments: Sequence[Any], *, twice: bool = False, compiled: bool = False) -> Step:
    """Return ``function`` for arguments of these shapes, without its Python, or compiled.

    Raises
    ------
    CannotFuse
        Two traces differ, so that ``forward`` changes from step to step.
    """
    flat, structure = tree_flatten(list(arguments))

    def of_tensors(*tensors: Any) -> Any:
        return function(*tree_unflatten(list(tensors), structure))

    # Fake tensors have no memory, and leave buffers and random numbers alone.
    record = make_fx(of_tensors, tracing_mode="fake", _allow_non_fake_inputs=True)
    graph = record(*flat)
    if twice and record(*flat).code != graph.code:
        raise CannotFuse("The operators of a step differ from one call to the next.")
    run = torch.compile(graph, fullgraph=True, dynamic=False) if compiled else _simplify(graph).forward

    def step(parameters: Any, buffers: Any, gradients: Any, scale: Any, batch: Any) -> Any:
        with torch.no_grad():
            return run(*parameters, *buffers, *gradients, *scale, *batch)

    return step


class Recording:
    """Calls recorded as one CUDA graph.

    Parameters
    ----------
    calls : sequence of callable
        Each returns a tensor, and reads the batch from the tensors in ``batch``.
    batch : sequence of Tensor
        Where the calls read; ``replay`` copies each batch there.
    side_by_side : bool
        Whether the calls run at the same time, on streams of their own.
    """

    def __init__(
        self, calls: Sequence[Callable[[], Any]], batch: Sequence[Any], device: torch.device, *, side_by_side: bool
    ) -> None:
        self._batch = batch
        self._graph = torch.cuda.CUDAGraph()
        streams = [torch.cuda.Stream(device) for _ in range(min(len(calls), STREAMS) if side_by_side else 1)]
        with torch.cuda.device(device):
            for _ in range(3):  # libraries choose and load their kernels, which cannot be recorded
                self._run(calls, streams)
            with torch.cuda.graph(self._graph):
                losses = self._run(calls, streams)
                self._losses = losses[0] if len(losses) == 1 else torch.cat(losses)

    @staticmethod
    def _run(calls: Sequence[Callable[[], Any]], streams: Sequence[Any]) -> list[Any]:
        current = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(current)
        losses = []
        for at, call in enumerate(calls):
            with torch.cuda.stream(streams[at % len(streams)]):
                losses.append(call())
        for stream in streams:
            current.wait_stream(stream)
        return losses

    def replay(self, batch: Sequence[Any]) -> Any:
        """Run the calls on another batch, and return all that they returned."""
        for own, given in zip(self._batch, batch, strict=True):
            if _is_shared(own):
                own[0].copy_(given[0])
            else:
                own.copy_(given)
        self._graph.replay()
        return self._losses.clone()


def own_copy(tensor: Any) -> Any:
    """Copy a tensor, shared if the original is."""
    return tensor[:1].clone().expand(tensor.shape) if _is_shared(tensor) else tensor.clone()


def _is_shared(tensor: Any) -> bool:
    return bool(tensor.shape[0] > 1 and tensor.stride()[0] == 0)


@contextmanager
def exact_convolutions(device: torch.device) -> Iterator[None]:
    """Have convolutions on a GPU keep all digits of float32, for comparisons."""
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    with cudnn.flags(
        enabled=cudnn.enabled, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False
    ):
        yield


def _simplify(module: Any) -> Any:
    """Simplify a traced graph.

    Operators without effect are dropped, and gradients are stored as soon as they are known.
    """
    graph = module.graph
    mutable = [node for node in graph.nodes if _is_in_place(node)]
    # An intermediate result that is changed in place must stay an array of its own.
    only_inputs = all(_root(node.args[0]).op == "placeholder" for node in mutable if node.args)
    _drop_repetitions(graph, only_inputs)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not _is_in_place(node):
            graph.erase_node(node)
    for node in list(graph.nodes) if only_inputs else ():
        if node.target is aten.copy_.default and len(node.args[0].users) == 1:
            _store_soon(node)
    for node in graph.nodes:
        if node.target in METHODS:
            node.op, node.target = "call_method", METHODS[node.target]
        elif node.op == "call_function":
            node.target = DIRECT.get(node.target, node.target)
    module.recompile()
    return module


def _store_soon(copy: Any) -> None:
    """Store a gradient, a large one without a copy."""
    gradient, source = copy.args
    if not isinstance(source, torch.fx.Node) or source.op == "placeholder":
        return
    source.append(copy)
    product = source.args[0] if source.target is aten.transpose.int and source.args[1:] == (1, 2) else None
    if (
        product is None
        or product.target is not aten.bmm.default
        or len(product.users) > 1
        or len(source.users) > 1
        or gradient.meta["val"][0].numel() < LARGE
        or gradient.meta["val"].dtype != source.meta["val"].dtype
    ):
        return
    graph = copy.graph
    with graph.inserting_before(product):
        left, right = (graph.call_function(torch.transpose, (factor, 1, 2)) for factor in product.args)
        graph.call_function(torch.bmm, (right, left), {"out": gradient})
    for node in (copy, source, product):
        graph.erase_node(node)


def _drop_repetitions(graph: Any, only_inputs: bool) -> None:
    seen: dict[str, Any] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if _is_in_place(node):
            seen.clear()  # what is read after a change is another value
            continue
        first = node
        source = node.args[0] if node.args else None
        if isinstance(source, torch.fx.Node) and _is_identity(node, source, only_inputs):
            first = source
        elif only_inputs and torch.Tag.nondeterministic_seeded not in node.target.tags:
            first = seen.setdefault(f"{node.target}{node.args}{node.kwargs}", node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _is_in_place(node: Any) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    # The running statistics of batch_norm change, but its schema does not say so.
    return bool(node.target._schema.is_mutable) or "batch_norm" in str(node.target)


def _is_identity(node: Any, source: Any, may_share: bool) -> bool:
    before, after = source.meta.get("val"), node.meta.get("val")
    if node.target in COPIES_NOTHING:
        return bool(before.shape == after.shape and before.stride() == after.stride())
    if node.target is aten.permute.default:
        return list(node.args[1]) == list(range(before.dim()))
    return may_share and node.target is aten.mul.Scalar and node.args[1] == 1 and before.dtype == after.dtype


def _root(node: Any) -> Any:
    """Return the node that owns a node's memory."""
    while node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        returns = node.target._schema.returns
        if not (returns and returns[0].alias_info and node.args and isinstance(node.args[0], torch.fx.Node)):
            break
        node = node.args[0]
    return node


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Silence PyTorch's warning that an operator is run model by model.

    What is slow is seen by measuring.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


@contextmanager
def _current_module(model: nn.Module) -> Iterator[list[str]]:
    """Keep the names of the modules that run, outermost first."""
    running: list[str] = []
    hooks = []
    for name, module in model.named_modules():
        label = f"{name or 'the model itself'} ({type(module).__name__})"
        hooks.append(module.register_forward_pre_hook(lambda *_, label=label: running.append(label)))
        hooks.append(module.register_forward_hook(lambda *_: running.pop() and None))
    try:
        yield running
    finally:
        for hook in hooks:
            hook.remove()


def find_sparse(model: nn.Module) -> list[Obstacle]:
    """Return the modules whose gradients are sparse."""
    return [
        Obstacle(f"{name or 'the model itself'} ({type(module).__name__})", "its gradients are sparse (sparse=True)")
        for name, module in model.named_modules()
        if getattr(module, "sparse", False) is True
    ]


def find_failure(template: nn.Module, run: Callable[[], Any]) -> Obstacle | None:
    """Return why a step for all models fails, or None."""
    with _current_module(template) as running:
        try:
            run()
        except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
            return Obstacle(running[-1] if running else "the loss, the step or the backward pass", _plain_reason(error))
    return None


def _plain_reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "data-dependent control flow" in text:
        return "its control flow depends on the values of tensors"
    if ".item()" in text:
        return "it reads a number out of a tensor (.item(), or an if or a loop on a tensor's value)"
    if "dynamic" in text:
        return "the shape of a result depends on the values of tensors"
    return f"{type(error).__name__}: {text.split('. ')[0][:200]}"


def fastest(ways: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the shortest time of each way, s.

    They take turns, so that other load meets all alike.
    """
    best = dict.fromkeys(ways, float("inf"))
    for run in ways.values():
        run()
    end = time.perf_counter() + MEASURED_S * len(ways)
    rounds = 0
    while rounds < 3 or (time.perf_counter() < end and rounds < 200):
        rounds += 1
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best

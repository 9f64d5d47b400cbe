"""A network built from its description, and one thread's training context (Adam 3.2.1).

The network is shared by all threads and holds no state of a step. Each thread makes its own `Context`, which
holds everything a step writes; weights are read in place, without locks, while other threads change them (Adam
3.2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import choose, load
from adamctl.kernels.layers.losses import Answers, LossResult
from adamctl.kernels.layers.make import make_training_loss
from adamctl.kernels.native import Call
from adamctl.kernels.needed import step_kernels
from adamctl.kernels.numeric.mix import set_key
from adamctl.kernels.operation import Array, Buffers, Factors, Key
from adamctl.kernels.step.build import NetworkLayer, build_layers
from adamctl.kernels.step.plan import (
    BoundLayer,
    NativeForward,
    NativePlan,
    StepPlan,
    native_forward,
    native_plan,
    step_plan,
)
from adamctl.kernels.step.steps import Accruing, Steps, native_steps
from adamctl.model.description import Model
from adamctl.model.layout import ParameterLayout, Tensor, build_layout
from adamctl.model.shapes import infer
from adamctl.model.tally import Tally

Views = Sequence[Array]
PLANS_MAX = 8  # batch sizes of one context; whole batches and the last of a range are two


class StepResult(NamedTuple):
    """The mean loss of a step's batch and how many of its examples were classified correctly.

    `after` says whether the step made the `after` calls given to `Network.prepare`.
    """

    loss: float
    correct: int
    after: bool = False


@dataclass
class Context:
    """One thread's buffers. Only that thread touches them.

    Attributes:
        gradient: flat float32 vector in the order of the parameter layout, padding zero; the last step's gradient.
        gradient_views: the same memory, one array per tensor.
        key: the key of the present step.
        buffers: one per layer of `network.layers`.
        plans: plans for the last few batch sizes.
        inputs: the inputs of each layer in the current step, followed by the network's outputs.
        after: calls for native steps to make at their end.
        forward: how whole batches are predicted, if that was prepared.
    """

    gradient: Array
    gradient_views: list[Array]
    key: Key
    buffers: list[Buffers]
    loss_error: Array
    layers: tuple[NetworkLayer, ...]
    plans: dict[int, StepPlan | NativePlan] = field(default_factory=dict)
    inputs: list[Array] = field(default_factory=list)
    after: Sequence[Call] = ()
    forward: NativeForward | None = None

    def factors(self, layer: int) -> Factors | None:
        """Returns the last step's factors of a dense layer, by its index in the model; None for other layers.

        The arrays are this context's buffers, valid until its next step.
        """
        for position, candidate in enumerate(self.layers):
            if candidate.shape.index == layer:
                return candidate.operation.factors(self.buffers[position], self.inputs[position])
        return None


class Network:
    """The operations of a model, for batches of up to `batch_max` examples.

    Attributes:
        layers: the operations in order; a convolution may include the pooling that follows it.
        layout: tensor order, shapes and offsets (the cut into shards is for one server and irrelevant here).
        tensors: the layout's tensors.
        flat_size: elements of a flat vector of all parameters.
    """

    def __init__(self, model: Model, batch_max: int, backend: str | None = None) -> None:
        self.model, self.batch_max = model, batch_max
        self.backend = choose(backend)
        self.shapes = infer(model)
        self.layout: ParameterLayout = build_layout(model, 1)
        self.tensors: tuple[Tensor, ...] = self.layout.tensors
        self.flat_size = self.layout.flat_size
        self.layers = build_layers(model, self.shapes, self.tensors, self.backend)
        self.loss = make_training_loss(model.loss, None, self.backend)
        first = [position for position, layer in enumerate(self.layers) if layer.tensors]
        self._backward_stop = first[0] if first else len(self.layers)

    def compile(
        self, progress: Callable[[str], None] | None = None, clipping: bool = False, weighted: bool = False
    ) -> None:
        """Loads, or on a machine's first use compiles, what steps and evaluations need, so that no step has to wait.

        `progress` is called with each kernel's name before it is loaded; `clipping`: gradients are clipped, too;
        `weighted`: classes will have weights.
        """
        if self.backend == "numba":
            load(step_kernels(self.model, clipping, weighted), progress)

    def weigh_classes(self, class_weights: Sequence[float] | None) -> None:
        """Sets the factor of each class in the loss of steps, [units]; None: 1. Before the first step."""
        self.loss = make_training_loss(self.model.loss, class_weights, self.backend)

    def views(self, flat: Array) -> list[Array]:
        """Returns one view per tensor of a flat vector of `flat_size` elements."""
        if flat.shape != (self.flat_size,):
            raise ValueError(f"parameters: expected shape [{self.flat_size}]; found {list(flat.shape)}")
        return [flat[t.offset : t.offset + t.size].reshape(t.shape) for t in self.tensors]

    def context(self, *, training: bool = True) -> Context:
        """Returns buffers for one thread. `training` False leaves out backward's."""
        gradient = np.zeros(self.flat_size if training else 0, np.float32)
        buffers = [
            layer.operation.allocate(self.batch_max, training and position > self._backward_stop)
            for position, layer in enumerate(self.layers)
        ]
        self._share_input_errors(buffers)
        return Context(
            gradient=gradient,
            gradient_views=self.views(gradient) if training else [],
            key=np.zeros(2, np.uint32),
            buffers=buffers,
            loss_error=np.zeros((self.batch_max if training else 0, self.shapes[-1].output[0]), np.float32),
            layers=self.layers,
        )

    def _share_input_errors(self, buffers: list[Buffers]) -> None:
        """Makes layers write their input errors alternately into two pieces of memory (Adam 3.2.1).

        The layer before reads an error and then no longer needs it, except a dense one, which keeps it as a factor.
        """
        shared: list[list[Buffers]] = [[], []]
        for position in range(1, len(buffers)):
            if buffers[position].input_error.size and not self.layers[position - 1].is_dense:
                shared[position % 2].append(buffers[position])
        for users in shared:
            memory = np.zeros(max((user.input_error.size for user in users), default=0), np.float32)
            for user in users:
                user.input_error = memory[: user.input_error.size].reshape(user.input_error.shape)

    def step(
        self,
        context: Context,
        weights: Array | Views,
        images: Array,
        labels: Answers,
        skip_dense_gradients: bool = False,
        key: int = 0,
    ) -> StepResult:
        """Computes the gradient of the mean loss of a batch into `context.gradient`.

        Args:
            context: this thread's context.
            weights: the flat vector of all parameters, or its `views`.
            images: [n, *model.input], float32, n <= batch_max.
            labels: [n], int32 or int64; where the loss takes targets, these: float32 [n, k].
            skip_dense_gradients: do not compute the weight gradients of dense layers: only factors are sent.
            key: the batch's `step_key`, which decides about dropout: with one key for all, each step drops the same.
        """
        self._check_batch(images)
        batch = len(images)
        set_key(context.key, key)
        plan = context.plans.get(batch)
        if plan is None or not plan.fits(weights, skip_dense_gradients):
            if not batch:
                return self._empty_step(context, images)
            plan = self._plan(context, weights, batch, skip_dense_gradients)
        inputs: list[Array] = []
        context.inputs = inputs
        loss_sum, correct = plan.run(images, labels, inputs)
        return StepResult(loss_sum / batch, correct, plan.makes_after)

    def prepare(
        self,
        context: Context,
        weights: Array | Views,
        skip_dense_gradients: bool = False,
        after: Sequence[Call] = (),
    ) -> None:
        """Plans the steps of whole batches in advance, which may compile a little, so that the first step need not.

        Native steps also make the `after` calls, and say so in their result.
        """
        context.after = after
        if self.batch_max:
            self._plan(context, weights, self.batch_max, skip_dense_gradients)

    def prepare_predictions(self, context: Context, weights: Array | Views) -> None:
        """Plans predictions and evaluations of whole batches with these weights, which may compile a little.

        They are then one native function, as a step is, so that layers of the user's own cost no call of Python.
        """
        views = self._views_of(weights)
        parts = [
            BoundLayer(layer.operation, [views[one] for one in layer.tensors], (), buffers, context.key, False, False,
                       layer.is_dense)
            for layer, buffers in zip(self.layers, context.buffers, strict=True)
        ]  # fmt: skip
        context.forward = native_forward(weights, parts, (self.batch_max, *self.model.input))

    def _plan(
        self, context: Context, weights: Array | Views, batch: int, skip_dense_gradients: bool
    ) -> StepPlan | NativePlan:
        """Plans the steps of batches of this size and keeps the plan in the context.

        Whole batches use native functions: others come once per pass and are not worth compiling for.
        """
        parts = self._bound(context, weights, skip_dense_gradients)
        error = context.loss_error[:batch]
        plan: StepPlan | NativePlan | None = None
        if batch == self.batch_max:
            images_shape = (batch, *self.model.input)
            plan = native_plan(weights, skip_dense_gradients, parts, self.loss, error, images_shape, context.after)
        if plan is None:
            plan = step_plan(weights, skip_dense_gradients, parts, self.loss, error)
        if len(context.plans) >= PLANS_MAX:
            context.plans.clear()
        context.plans[batch] = plan
        return plan

    def is_native(self, weights: Array | Views, skip_dense_gradients: bool = False) -> bool:
        """Whether a step of whole batches is one native function, which holds no interpreter lock."""
        context = self.context()
        self.prepare(context, weights, skip_dense_gradients)
        plan = context.plans.get(self.batch_max)
        return isinstance(plan, NativePlan) and plan.is_whole

    def native_steps(
        self, context: Context, weights: Array | Views, accruing: Accruing, after: Sequence[Call] = ()
    ) -> Steps | None:
        """Returns steps of whole batches, including accruing, that return to Python together.

        The `after` calls are made between a step and its accruing. None if a part of a step is not native.
        """
        parts = self._bound(context, weights, False)
        images_shape = (self.batch_max, *self.model.input)
        return native_steps(
            parts, self.loss, context.loss_error, images_shape, after, context.gradient, accruing, context.key
        )

    def _bound(self, context: Context, weights: Array | Views, skip_dense_gradients: bool) -> list[BoundLayer]:
        views = self._views_of(weights)
        parts: list[BoundLayer] = []
        for position, layer in enumerate(self.layers):
            gradients: list[Array | None] = [context.gradient_views[index] for index in layer.tensors]
            if skip_dense_gradients and layer.is_dense:
                gradients[0] = None
            needs_input_error = position > self._backward_stop
            own = [views[index] for index in layer.tensors]
            parts.append(
                BoundLayer(
                    layer.operation, own, gradients, context.buffers[position], context.key,
                    bool(gradients) or needs_input_error, needs_input_error, layer.is_dense,
                )
            )  # fmt: skip
        return parts

    def _empty_step(self, context: Context, images: Array) -> StepResult:
        context.gradient[...] = 0
        context.inputs = [images, *(buffers.output[:0] for buffers in context.buffers)]
        for layer, buffers in zip(self.layers, context.buffers, strict=True):
            if layer.is_dense:
                buffers.scratch["errors"] = buffers.output[:0]
        return StepResult(0.0, 0)

    def evaluate(self, context: Context, weights: Array | Views, images: Array, labels: Answers) -> tuple[float, int]:
        """Returns (summed loss, correct) over any number of examples, without dropout."""
        found = self.tally(context, weights, images, labels)
        return found.loss_sum, found.correct

    def tally(self, context: Context, weights: Array | Views, images: Array, labels: Answers) -> Tally:
        """Returns all that is added up over any number of examples, without dropout."""
        views, found = self._views_of(weights), Tally(0, 0.0)
        for start in range(0, len(images), self.batch_max):
            part = images[start : start + self.batch_max]
            answers = labels[start : start + len(part)]
            measured, outputs = self.measure(context, views, part, answers)
            sums = self.loss.sums(outputs, answers)
            found = found.plus(Tally(len(part), measured.loss_sum, measured.correct, sums))
        return found

    def measure(
        self, context: Context, weights: Array | Views, images: Array, labels: Answers
    ) -> tuple[LossResult, Array]:
        """Evaluates up to `batch_max` examples; also returns the outputs [n, units] that the loss was computed from.

        Outputs are a view that the context's next use changes; those of one-vs-all classifiers are logits.
        """
        outputs = self.outputs(context, weights, images)
        return self.loss.evaluate(outputs, labels), outputs

    def predict(self, context: Context, weights: Array | Views, images: Array) -> Array:
        """Returns the outputs [n, units] for up to `batch_max` examples, a view that the context's next use changes.

        A classifier's are probabilities.
        """
        return self.loss.finish(self.outputs(context, weights, images))

    def outputs(self, context: Context, weights: Array | Views, images: Array) -> Array:
        """Returns the outputs as `predict`, in the form that the loss takes: logits of one-vs-all classifiers."""
        self._check_batch(images)
        forward = context.forward
        if forward is not None and forward.weights is weights and len(images) == self.batch_max:
            return forward.run(images)
        views = self._views_of(weights)
        values = images
        for layer, buffers in zip(self.layers, context.buffers, strict=True):
            own = [views[index] for index in layer.tensors]
            values = layer.operation.forward(values, own, buffers, False, context.key)
        return values

    def _views_of(self, weights: Array | Views) -> Views:
        return self.views(weights) if isinstance(weights, np.ndarray) else weights

    def _check_batch(self, images: Array) -> None:
        good = images.shape[1:] == self.model.input and len(images) <= self.batch_max and images.dtype == np.float32
        if not good or not images.flags.c_contiguous:
            raise ValueError(
                f"images: expected contiguous float32 [n <= {self.batch_max}, "
                f"{', '.join(map(str, self.model.input))}]; found {images.dtype} {list(images.shape)}"
            )


def activation_bytes(network: Network) -> int:
    """Returns the bytes of one training context of a network: the cost of each additional thread."""
    context = network.context()
    arrays: list[NDArray[np.generic]] = [context.gradient, context.loss_error]
    for buffers in context.buffers:
        arrays += [buffers.output, buffers.input_error, *buffers.scratch.values()]
    memory = {id(whole): whole for array in arrays for whole in (array if array.base is None else array.base,)}
    return sum(array.nbytes for array in memory.values())

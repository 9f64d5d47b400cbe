"""Layers as users write them, for tests: whole numbers stay whole, so that sums in any order are exact."""

from __future__ import annotations

import numpy as np

import adamctl as adam


class Relu(adam.Layer):
    """out = max(inputs, 0)."""

    def output_shape(self, input):
        return input

    def connectivity(self):
        return adam.Same()

    def upward(self, part, inputs, parameters, state, out):
        np.maximum(inputs, 0, out=out)

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        if out is not None:
            np.multiply(error, inputs > 0, out=out)


@adam.kernel("void(float32[::1], float32[::1])")
def relu(inputs, out):
    for place in range(inputs.size):
        out[place] = max(inputs[place], np.float32(0))


@adam.kernel("void(float32[::1], float32[::1], float32[::1])")
def relu_error(error, inputs, out):
    for place in range(inputs.size):
        out[place] = error[place] if inputs[place] > 0 else np.float32(0)


class NativeRelu(Relu):
    """As `Relu`, compiled."""

    def native_upward(self, part, inputs, parameters, state, out):
        return [adam.call(relu, inputs.reshape(-1), out.reshape(-1))]

    def native_downward(self, part, error, inputs, parameters, gradients, state, out):
        return [] if out is None else [adam.call(relu_error, error.reshape(-1), inputs.reshape(-1), out.reshape(-1))]


@adam.kernel("void(float32[:,:,:,::1], float32[:,:,:,::1])")
def blur(inputs, out):
    for n in range(out.shape[0]):
        for y in range(out.shape[1]):
            for x in range(out.shape[2]):
                for c in range(out.shape[3]):
                    out[n, y, x, c] = (
                        inputs[n, y, x + 1, c] + inputs[n, y + 1, x, c] + inputs[n, y + 1, x + 2, c]
                        + inputs[n, y + 2, x + 1, c]
                    )  # fmt: skip


@adam.kernel("void(float32[:,:,:,::1], float32[:,:,:,::1])")
def blur_error(error, out):
    out[...] = 0
    for n in range(error.shape[0]):
        for y in range(error.shape[1]):
            for x in range(error.shape[2]):
                for c in range(error.shape[3]):
                    out[n, y, x + 1, c] += error[n, y, x, c]
                    out[n, y + 1, x, c] += error[n, y, x, c]
                    out[n, y + 1, x + 2, c] += error[n, y, x, c]
                    out[n, y + 2, x + 1, c] += error[n, y, x, c]


class Neighbours(adam.Layer):
    """The sum of the four neighbours, compiled; zeros around the image."""

    def output_shape(self, input):
        return input

    def connectivity(self):
        return adam.Window(3, padding="same")

    def upward(self, part, inputs, parameters, state, out):
        np.add(inputs[:, :-2, 1:-1], inputs[:, 2:, 1:-1], out=out)
        out += inputs[:, 1:-1, :-2]
        out += inputs[:, 1:-1, 2:]

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        if out is not None:
            out[...] = 0
            for view in (out[:, :-2, 1:-1], out[:, 2:, 1:-1], out[:, 1:-1, :-2], out[:, 1:-1, 2:]):
                view += error

    def native_upward(self, part, inputs, parameters, state, out):
        return [adam.call(blur, inputs, out)]

    def native_downward(self, part, error, inputs, parameters, gradients, state, out):
        return [] if out is None else [adam.call(blur_error, error, out)]


class Slope(adam.Layer):
    """out = inputs * slope, one slope for each map, or each unit of a vector."""

    def output_shape(self, input):
        return input

    def connectivity(self):
        return adam.Same()

    def parameters(self, input):
        return {"slope": adam.Parameter((input[-1],), init="ones", shared=len(input) > 1)}

    def upward(self, part, inputs, parameters, state, out):
        np.multiply(inputs, parameters["slope"], out=out)

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        np.sum(error * inputs, axis=tuple(range(error.ndim - 1)), out=gradients["slope"])
        if out is not None:
            np.multiply(error, parameters["slope"], out=out)


class RowSums(adam.Layer):
    """Sums of windows, stride apart, times a number for each row of the outputs, plus one for each map."""

    size: int = 3
    stride: int = 1
    padding: str = "same"

    def output_shape(self, input):
        counts = [
            -(-n // self.stride) if self.padding == "same" else (n - self.size) // self.stride + 1 for n in input[:2]
        ]
        return (*counts, input[2])

    def connectivity(self):
        return adam.Window(self.size, self.stride, self.padding)

    def parameters(self, input):
        shape = self.output_shape(input)
        return {"scale": adam.Parameter((shape[0],), init=2.0), "added": adam.Parameter((shape[2],), shared=True)}

    def state(self, part):
        return {"sums": part.output_shape}

    def windows(self, part, image):
        rows, columns, _ = part.output_shape
        for y, x in np.ndindex(self.size, self.size):
            yield image[:, y : y + rows * self.stride : self.stride, x : x + columns * self.stride : self.stride][
                :, :rows, :columns
            ]

    def upward(self, part, inputs, parameters, state, out):
        state["sums"][...] = 0
        sums = state["sums"]
        for window in self.windows(part, inputs):
            sums += window
        np.multiply(sums, parameters["scale"][:, None, None], out=out)
        out += parameters["added"]

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        gradients["scale"][...] = (error * state["sums"]).sum((0, 2, 3))
        gradients["added"][...] = error.sum((0, 1, 2))
        if out is not None:
            out[...] = 0
            for window in self.windows(part, out):
                window += error * parameters["scale"][:, None, None]


class Mix(adam.Layer):
    """out = scale * (mixing @ inputs): a dense layer, and a number that all its units share."""

    units: int

    def output_shape(self, input):
        return (self.units,)

    def connectivity(self):
        return adam.Full()

    def parameters(self, input):
        inputs = int(np.prod(input))
        return {
            "mixing": adam.Parameter((self.units, inputs), init="glorot"),
            "scale": adam.Parameter((1,), init="ones", shared=True),
        }

    def upward(self, part, inputs, parameters, state, out):
        np.matmul(inputs.reshape(len(inputs), -1), parameters["mixing"].T, out=out)
        out *= parameters["scale"]

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        flat = inputs.reshape(len(inputs), -1)
        gradients["scale"][...] = (error * (flat @ parameters["mixing"].T)).sum()
        error *= parameters["scale"]
        np.matmul(error.T, flat, out=gradients["mixing"])
        if out is not None:
            np.matmul(error, parameters["mixing"], out=out.reshape(len(out), -1))


class RowsOfAll(adam.Layer):
    """An image of as many rows as there are numbers: each is the sum of all inputs of a map, times its number."""

    rows: int

    def output_shape(self, input):
        return (self.rows, 1, input[2])

    def connectivity(self):
        return adam.Full()

    def parameters(self, input):
        return {"number": adam.Parameter((self.rows,), init="ones"), "added": adam.Parameter((1,), shared=True)}

    def upward(self, part, inputs, parameters, state, out):
        sums = inputs.sum((1, 2))
        out[...] = sums[:, None, None, :] * parameters["number"][:, None, None] + parameters["added"]

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        gradients["number"][...] = (error * inputs.sum((1, 2))[:, None, None, :]).sum((0, 2, 3))
        gradients["added"][...] = error.sum()
        if out is not None:
            out[...] = (error * parameters["number"][:, None, None]).sum(1, keepdims=True)


class Checked(adam.Layer, name="checked"):
    """Keys of every kind, one of them checked; computes nothing."""

    count: int
    share: float = 0.5
    word: str = "a"
    flag: bool = False
    sizes: tuple[int, ...] = (1, 2)
    limit: float | None = None

    def __post_init__(self):
        if self.count < 1:
            raise ValueError(f"count must be at least 1; found {self.count}")

    def output_shape(self, input):
        return input

    def connectivity(self):
        return adam.Same()


NOT_A_LAYER = 5


class Whitening(adam.Layer):
    """Centred and scaled by the window around each pixel, as in `adamctl.kernels.custom.whiten`, in 30 lines."""

    size: int = 5

    def output_shape(self, input):
        return input

    def connectivity(self):
        return adam.Window(self.size, padding="same")

    def parameters(self, input):
        return {"gain": adam.Parameter((input[2],), init="ones", shared=True)}

    def windows(self, part, image):
        (rows, columns, _), inside = part.output_shape, part.inside[..., None]
        for y, x in np.ndindex(self.size, self.size):
            yield image[:, y : y + rows, x : x + columns], inside[y : y + rows, x : x + columns]

    def whitened(self, part, inputs):
        windows, count = list(self.windows(part, inputs)), part.counts[..., None]
        mean = sum(window for window, _ in windows) / count
        root = np.sqrt(sum((window - mean) ** 2 * inside for window, inside in windows) / count + 0.01)
        return windows, mean, root, (windows[len(windows) // 2][0] - mean) / root

    def upward(self, part, inputs, parameters, state, out):
        out[...] = parameters["gain"] * self.whitened(part, inputs)[-1]

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        windows, mean, root, values = self.whitened(part, inputs)
        gradients["gain"][...] = (error * values).sum((0, 1, 2))
        if out is not None:
            error *= parameters["gain"] / root
            out[...] = 0
            targets = [target for target, _ in self.windows(part, out)]
            for target, (window, inside) in zip(targets, windows, strict=True):
                target -= error * (1 + values * (window - mean) / root) / part.counts[..., None] * inside
            targets[len(targets) // 2] += error

"""Train deep networks on ordinary CPU machines: Project Adam (OSDI 2014) and DistBelief (NIPS 2012) as one program.

import adamctl as adam
net = adam.Sequential([adam.Dense(128, activation="relu"), adam.Softmax(10)], input_shape=(8, 8, 1))
run = adam.fit(net, "digits", optimizer=adam.Momentum(0.05), passes=20)
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

# Loaded on first use: the command line imports this package on every start.
_EXPORTS = {
    "Conv2D": "adamctl.model.description",
    "MaxPool2D": "adamctl.model.description",
    "Dense": "adamctl.model.description",
    "Dropout": "adamctl.model.description",
    "Softmax": "adamctl.model.description",
    "Local2D": "adamctl.model.description",
    "L2Pool2D": "adamctl.model.description",
    "LocalContrastNorm": "adamctl.model.description",
    "Logistic": "adamctl.model.description",
    "Model": "adamctl.model.description",
    "Layer": "adamctl.model.custom.interface",
    "Parameter": "adamctl.model.custom.interface",
    "Window": "adamctl.model.custom.interface",
    "Same": "adamctl.model.custom.interface",
    "Full": "adamctl.model.custom.interface",
    "Message": "adamctl.model.custom.interface",
    "Part": "adamctl.model.custom.interface",
    "check_layer": "adamctl.kernels.layer_check.check",
    "kernel": "adamctl.kernels.custom_kernel",
    "call": "adamctl.kernels.custom_kernel",
    "Loss": "adamctl.model.custom.loss",
    "check_loss": "adamctl.api.check_loss",
    "Cut": "adamctl.model.partition.cuts",
    "Sequential": "adamctl.api.network",
    "SGD": "adamctl.api.optimizers",
    "Momentum": "adamctl.api.optimizers",
    "Adagrad": "adamctl.api.optimizers",
    "RMSProp": "adamctl.api.optimizers",
    "Adam": "adamctl.api.optimizers",
    "LBFGS": "adamctl.api.optimizers",
    "CG": "adamctl.api.optimizers",
    "OWLQN": "adamctl.api.optimizers",
    "Optimizer": "adamctl.api.optimizers",
    "Schedule": "adamctl.api.optimizers",
    "Source": "adamctl.api.source",
    "DataConfig": "adamctl.config.experiment",
    "AugmentConfig": "adamctl.config.augment",
    "ElasticConfig": "adamctl.config.augment",
    "ParameterClient": "adamctl.api.parameter_client.blocking",
    "AsyncParameterClient": "adamctl.api.parameter_client.asynchronous",
    "fit": "adamctl.api.fit",
    "load": "adamctl.api.load",
    "TrainedModel": "adamctl.api.load",
    "Run": "adamctl.api.fit",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'adamctl' has no attribute {name!r}; it offers {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

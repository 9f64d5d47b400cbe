"""Trains a small network on the digits that install with scikit-learn, from Python; then classifies a few."""

import adamctl as adam


def main() -> None:
    net = adam.Sequential(
        [
            adam.Conv2D(16, 3, padding="same", activation="relu"),
            adam.Conv2D(32, 3, padding="same", activation="relu"),
            adam.MaxPool2D(2),
            adam.Dense(128, activation="relu"),
            adam.Softmax(10),
        ],
        input_shape=(8, 8, 1),
    )
    optimizer = adam.SGD(0.1, schedule=adam.Schedule("one_cycle"))
    data = adam.DataConfig(translate=1)  # the digits, each pass moving every image by up to one pixel
    run = adam.fit(net, data, optimizer=optimizer, name="digits-from-python", passes=30, batch=16, evaluate_every=5)
    print(f"test accuracy {run.result['test_top1']:.3f}, run folder {run.folder}")
    for name, values in run.parameters().items():
        print(f"{name:18} {values.shape}")


if __name__ == "__main__":
    main()

"""Its presence puts this folder on the path, so that tests below find `kernel_checks`."""

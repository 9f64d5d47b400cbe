"""The Python interface; `import adamctl as adam` offers its names directly."""

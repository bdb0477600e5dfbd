"""From a source to a dataset: sources, transforms, tasks, executors."""

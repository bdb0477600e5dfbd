"""From a dataset to tensors: which bytes go to which rows, reading and decoding them, datasets and loaders."""

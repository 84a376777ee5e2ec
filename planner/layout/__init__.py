"""From a model and its optimizers to buffers whose shards cut nothing that must stay together."""

"""In which order, at which offsets and in how large shards the tensors of a communication buffer lie."""

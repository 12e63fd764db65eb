"""The continuous engine: transformers' model, our own KV slots, one step at a time."""

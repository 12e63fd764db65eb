"""What gateway and worker must agree on: messages, keys, scripts, lanes, settings."""
